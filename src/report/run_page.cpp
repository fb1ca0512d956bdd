#include "trireme/report/run_page.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "report/html_text.hpp"
#include "report/page_parts.hpp"
#include "report/page_style.hpp"
#include "report/run_charts.hpp"
#include "trireme/base/text.hpp"
#include "trireme/report/run_notes.hpp"

namespace trireme::report {
namespace {

const char* word_of(Standing standing) {
  switch (standing) {
    case Standing::running: return "running";
    case Standing::done: return "done";
    case Standing::stopped: return "stopped";
    case Standing::failed: return "failed";
    case Standing::ended: return "ended";
    case Standing::unknown: break;
  }
  return "unknown";
}

std::string document(const std::string& title, const std::string& body) {
  // The policy keeps everything out that is not in this file, whatever a sample contains.
  return base::text(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width,initial-scale=1\"><meta http-equiv=\"Content-Security-Policy\" "
      "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\"><link rel=\"icon\" "
      "href=\"data:,\"><title>",
      html(title), "</title><style>", page_style, "</style></head><body>\n", body, page_mark,
      clock_text(wall_clock()),
      ". A dashed line with a flag marks a restart; the pointer on a chart shows its numbers."
      "</footer></body></html>\n");
}

std::string badge(const RunState& state) {
  return base::text("<span class=\"badge ", word_of(state.standing), "\">", html(state.words),
                    "</span>");
}

std::string fact(const std::string& name, const std::string& value) {
  if (value.empty()) return "";
  return base::text("<span>", html(name), name.empty() ? "" : " ", "<b>", html(value),
                    "</b></span>");
}

std::string progress_of(const RunHistory& run) {
  const int64_t done = run.last().iteration;
  const int64_t all = run.iterations();
  if (all <= 0) return base::text("iteration ", done);
  return base::text("iteration ", done, " of ", all, " (", 100 * done / all, " %)");
}

std::string facts(const ShownRun& shown) {
  const RunHistory& run = *shown.run;
  const RunRecord& record = run.record();
  std::string out = fact("", progress_of(run));
  if (shown.state.standing == Standing::running) out += fact("", time_left(run));
  const double epoch = run.last().get("epoch");
  if (!std::isnan(epoch)) out += fact("epoch", base::fixed(epoch, 2));
  out += fact("", record.command) + fact("model", record.model);
  if (!record.starts.empty()) {
    const RunStart& start = record.starts.back();
    out += fact("ranks",
                base::text(start.ranks, start.nodes > 1 ? base::text(" on ", start.nodes, " nodes")
                                                        : std::string()));
    if (record.starts.size() > 1) out += fact("starts", std::to_string(record.starts.size()));
    out += fact("started", clock_text(record.starts.front().time));
  }
  if (run.last().time > 0) out += fact("newest iteration", clock_text(run.last().time));
  if (run.newest_checkpoint() >= 0)
    out += fact("checkpoint", base::text("of iteration ", run.newest_checkpoint()));
  return base::text("<p class=\"facts\">", out, "</p>\n");
}

std::string bar(const RunHistory& run) {
  if (run.iterations() <= 0) return "";
  const double share = std::min(
      1.0, static_cast<double>(run.last().iteration) / static_cast<double>(run.iterations()));
  return base::text("<div class=\"bar\"><i style=\"width:", base::fixed(100 * share, 1),
                    "%\"></i></div>\n");
}

std::string notes(const RunHistory& run) {
  std::string out;
  for (const RunNote& note : notes_on(run))
    out += base::text("<li", note.weight == RunNote::Weight::warning ? " class=\"warning\">" : ">",
                      html(note.what), "<small>", html(note.advice), "</small></li>");
  return out.empty() ? "" : base::text("<ul class=\"notes\">", out, "</ul>\n");
}

std::string tiles(const RunHistory& run) {
  std::string out;
  for (const KeyMetric& metric : key_metrics({&run})) {
    const Series& series = run.series(metric.name);
    const bool moved = series.count() > 1;
    out +=
        base::text("<div><span>", html(metric.label), "</span><b>",
                   with_unit(series.last(), metric.unit), "</b><span>",
                   moved ? base::text("first ", with_unit(series.first(), metric.unit)) : "&nbsp;",
                   "</span></div>");
  }
  return out.empty() ? "" : base::text("<div class=\"tiles\">", out, "</div>\n");
}

std::string charts(const std::vector<ChartSection>& sections, const ChartFrame& frame) {
  std::string out;
  for (const ChartSection& section : sections) {
    std::string drawn;
    for (const Chart& chart : section.charts) drawn += to_html(chart, frame);
    if (!drawn.empty())
      out += base::text("<section><h2>", html(section.title), "</h2><div class=\"charts\">\n",
                        drawn, "</div></section>\n");
  }
  return out;
}

std::string page_of_one(const ShownRun& shown, const std::filesystem::path& file) {
  const RunHistory& run = *shown.run;
  std::string body = base::text("<header><h1>", html(run.name()), "</h1>", badge(shown.state),
                                "</header>\n", bar(run), facts(shown), notes(run), tiles(run));
  if (run.last().iteration == 0) body += "<p class=\"soft\">No iteration is finished yet.</p>\n";
  body += charts(charts_of(run), frame_of(run));
  body += samples_part(run) + roles_part(run) + memory_part(run) + problems_part(run) +
          starts_part(run) + deck_part(run) + files_part(run, file);
  return document(run.name(), body);
}

// A row per run, a column per metric that any has.
std::string table_of_runs(std::span<const ShownRun> runs, const std::vector<RunGroup>& groups,
                          const std::vector<KeyMetric>& metrics) {
  std::string head = "<th></th><th>Run</th><th>State</th><th class=\"n\">Iteration</th>";
  for (const KeyMetric& metric : metrics)
    head += base::text("<th class=\"n\">", html(metric.label), "</th>");
  std::string rows;
  for (const ShownRun& shown : runs) {
    const auto group = std::ranges::find_if(groups, [&](const RunGroup& one) {
      return std::ranges::find(one.runs, shown.run) != one.runs.end();
    });
    rows +=
        base::text("<tr><td><span class=\"k", (group - groups.begin()) % 8, "\">━</span></td><td>",
                   html(shown.run->folder().string()), "</td><td>", badge(shown.state),
                   "</td><td class=\"n\">", shown.run->last().iteration, "</td>");
    for (const KeyMetric& metric : metrics) {
      const Series& series = shown.run->series(metric.name);
      rows += base::text("<td class=\"n\">",
                         series.empty() ? "–" : with_unit(series.last(), metric.unit), "</td>");
    }
    rows += "</tr>";
  }
  return base::text("<div class=\"scroll\"><table><thead><tr>", head, "</tr></thead><tbody>", rows,
                    "</tbody></table></div>\n");
}

// Keys by which the decks differ, a column per run.
std::string table_of_decks(std::span<const ShownRun> runs) {
  std::vector<std::string> keys;
  const auto value = [](const RunHistory& run, const std::string& key) {
    const auto found =
        std::ranges::find(run.deck(), key, &std::pair<std::string, std::string>::first);
    return found == run.deck().end() ? std::string() : found->second;
  };
  for (const ShownRun& shown : runs) {
    for (const auto& [key, text] : shown.run->deck()) {
      const bool same = std::ranges::all_of(
          runs, [&](const ShownRun& other) { return value(*other.run, key) == text; });
      if (!same && std::ranges::find(keys, key) == keys.end()) keys.push_back(key);
    }
  }
  if (keys.empty()) return "";
  std::string head = "<th>Key</th>", rows;
  for (const ShownRun& shown : runs) head += base::text("<th>", html(shown.run->name()), "</th>");
  for (const std::string& key : keys) {
    rows += base::text("<tr><td><code>", html(key), "</code></td>");
    for (const ShownRun& shown : runs) {
      const std::string text = value(*shown.run, key);
      rows += base::text("<td>",
                         text.empty() ? "<span class=\"soft\">default</span>"
                                      : base::text("<code>", html(text), "</code>"),
                         "</td>");
    }
    rows += "</tr>";
  }
  return base::text(
      "<section><h2>Where the decks differ</h2><div class=\"scroll\"><table><thead><tr>", head,
      "</tr></thead><tbody>", rows, "</tbody></table></div></section>\n");
}

std::string page_of_several(std::span<const ShownRun> runs) {
  std::vector<const RunHistory*> histories;
  for (const ShownRun& shown : runs) histories.push_back(shown.run);
  const auto groups = groups_of(histories);
  ChartFrame frame;
  for (const RunHistory* run : histories)
    frame.last_iteration =
        std::max(frame.last_iteration, static_cast<double>(run->last().iteration));
  std::string body = base::text("<header><h1>", runs.size(), " runs</h1></header>\n");
  for (const RunGroup& group : groups) {
    if (group.runs.size() > 1)
      body += base::text("<p class=\"soft\">", html(group.name),
                         ": the line is the mean over its runs, the band their range.</p>\n");
  }
  body += "<section>" + table_of_runs(runs, groups, key_metrics(histories)) + "</section>\n";
  body += charts(charts_beside(groups), frame) + table_of_decks(runs);
  return document(base::text(runs.size(), " runs"), body);
}

}  // namespace

std::string time_left(const RunHistory& run) {
  const int64_t left = run.iterations() - run.last().iteration;
  const double each = run.seconds_per_iteration();
  if (left <= 0 || each <= 0) return "";
  return base::text("about ", base::human_seconds(each * static_cast<double>(left)), " left");
}

std::string page_of(std::span<const ShownRun> runs, const std::filesystem::path& file) {
  return runs.size() == 1 ? page_of_one(runs.front(), file) : page_of_several(runs);
}

}  // namespace trireme::report
