#include "report/run_charts.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "report/chart_table.hpp"
#include "trireme/base/text.hpp"
#include "trireme/report/iteration_metrics.hpp"

namespace trireme::report {
namespace {

using Style = ChartTrace::Style;

const Bin* bin_at(const Series& series, double x) {
  const auto& bins = series.bins();
  const auto found = std::ranges::find_if(
      bins, [&](const Bin& bin) { return static_cast<double>(bin.last) >= x; });
  return found == bins.end() ? nullptr : &*found;
}

ChartTrace trace_of(const RunHistory& run, const TraceRow& row) {
  ChartTrace trace{.name = row.label, .style = row.style};
  const Series& low = run.series(row.low);
  const Series& high = run.series(row.high);
  const Series& deviation = run.series(row.deviation);
  trace.band = !deviation.empty() || (!low.empty() && !high.empty());
  for (const Bin& bin : run.series(row.metric).bins()) {
    const double x = bin.middle();
    ChartPoint point{x, bin.mean(), bin.mean(), bin.mean()};
    if (const Bin* around = bin_at(deviation, x)) {
      point.low -= around->mean();
      point.high += around->mean();
    } else if (const Bin* below = bin_at(low, x)) {
      point.low = below->low;
      if (const Bin* above = bin_at(high, x)) point.high = above->high;
    }
    trace.points.push_back(point);
  }
  return trace;
}

ChartTrace plain_trace(const RunHistory& run, const std::string& metric, const std::string& label,
                       Style style = Style::line) {
  return trace_of(run, {.metric = metric.c_str(), .label = label.c_str(), .style = style});
}

Chart parts_chart(const RunHistory& run) {
  constexpr size_t most = 8;
  Chart chart{.title = "Parts of the reward", .note = "mean of each"};
  for (const std::string& name : run.reward_parts()) {
    if (chart.traces.size() == most) break;
    chart.traces.push_back(
        plain_trace(run, name, name.substr(std::string_view(reward_prefix).size())));
  }
  return chart;
}

// Of environment.tools.
Chart tools_chart(const RunHistory& run) {
  constexpr size_t most = 8;
  constexpr std::string_view prefix = "environment.tools.", suffix = ".calls";
  Chart chart{.title = "Calls by tool", .note = "of an iteration"};
  for (const std::string& name : run.names()) {
    if (!name.starts_with(prefix) || !name.ends_with(suffix) || chart.traces.size() == most)
      continue;
    const size_t length = name.size() - prefix.size() - suffix.size();
    chart.traces.push_back(plain_trace(run, name, name.substr(prefix.size(), length)));
  }
  return chart;
}

// Everything that an evaluation says and no other chart has.
Chart evaluation_chart(const RunHistory& run) {
  Chart chart{
      .title = "Evaluation", .note = "answers with a reward above 0.5", .unit = Unit::share};
  for (const std::string& name : run.names()) {
    if (!name.starts_with("eval_pass")) continue;
    const std::string k = name.substr(std::string_view("eval_pass").size());
    chart.traces.push_back(plain_trace(run, name, "pass@" + k, Style::dots));
  }
  return chart;
}

Chart phases_chart(const RunHistory& run) {
  constexpr std::array phases{"rollout", "reward",   "exchange", "train",
                              "sync",    "evaluate", "report"};
  Chart chart{.title = "Seconds of an iteration", .note = "by phase", .unit = Unit::seconds};
  for (const char* phase : phases) {
    ChartTrace trace = plain_trace(run, base::text("seconds.", phase), phase, Style::area);
    if (!trace.points.empty()) chart.traces.push_back(std::move(trace));
  }
  return chart;
}

bool worth_showing(const RunHistory& run, const ChartRow& row) {
  const std::string_view title = row.title;
  const bool any = std::ranges::any_of(
      row.traces, [&](const TraceRow& trace) { return !run.series(trace.metric).empty(); });
  // Nothing to see where they stay as they are.
  const bool quiet = title == "KL coefficient" || title == "Skipped optimizer steps" ||
                     title == "Waiting" || title == "Mismatch" || title == "Age of tokens";
  if (!quiet) return any;
  return std::ranges::any_of(
      row.traces, [&](const TraceRow& trace) { return run.series(trace.metric).varies(); });
}

void add(std::vector<ChartSection>& sections, const std::string& title, Chart chart) {
  const auto found = std::ranges::find(sections, title, &ChartSection::title);
  auto& section = found == sections.end() ? sections.emplace_back(ChartSection{title, {}}) : *found;
  section.charts.push_back(std::move(chart));
}

}  // namespace

std::vector<ChartSection> charts_of(const RunHistory& run) {
  std::vector<ChartSection> sections;
  for (const ChartRow& row : chart_rows()) {
    const std::string_view title = row.title;
    if (title == "KL to the reference") {
      if (Chart parts = parts_chart(run); parts.traces.size() > 1)
        add(sections, row.section, std::move(parts));
      if (Chart passes = evaluation_chart(run); !passes.traces.empty())
        add(sections, row.section, std::move(passes));
    }
    if (title == "Tokens per second") add(sections, row.section, phases_chart(run));
    if (!worth_showing(run, row)) continue;
    Chart chart{row.title, row.note, row.unit, row.from_zero, {}};
    for (const TraceRow& trace : row.traces) {
      if (!run.series(trace.metric).empty()) chart.traces.push_back(trace_of(run, trace));
    }
    if (std::ranges::none_of(chart.traces, &ChartTrace::band)) {
      const size_t band = chart.note.find("band: ");  // an older version logged no such metric
      if (band != std::string::npos) chart.note = band < 2 ? "" : chart.note.substr(0, band - 2);
    }
    add(sections, row.section, std::move(chart));
    if (title != "Calls of tools") continue;
    if (Chart tools = tools_chart(run); !tools.traces.empty())
      add(sections, row.section, std::move(tools));
  }
  return sections;
}

ChartFrame frame_of(const RunHistory& run) {
  ChartFrame frame{.last_iteration = static_cast<double>(run.last().iteration)};
  const auto& starts = run.record().starts;
  for (size_t i = 1; i < starts.size(); ++i) {
    const auto after = static_cast<double>(starts[i].after);
    if (after > 0 && after <= frame.last_iteration) frame.restarts.push_back(after);
  }
  return frame;
}

std::vector<RunGroup> groups_of(const std::vector<const RunHistory*>& runs) {
  const auto meaning = [](const RunHistory& run) {
    auto deck = run.deck();
    std::erase_if(deck, [](const auto& entry) {
      constexpr std::array elsewhere{"run.", "ckpt.", "trace.", "report.", "fault."};
      return std::ranges::any_of(
          elsewhere, [&](const char* section) { return entry.first.starts_with(section); });
    });
    return deck;
  };
  std::vector<RunGroup> groups;
  for (const RunHistory* run : runs) {
    const auto same = std::ranges::find_if(groups, [&](const RunGroup& group) {
      return run->record().command == group.runs.front()->record().command &&
             meaning(*run) == meaning(*group.runs.front());
    });
    if (same == groups.end()) {
      groups.push_back({run->name(), {run}});
    } else {
      same->runs.push_back(run);
    }
  }
  for (RunGroup& group : groups) {
    if (group.runs.size() > 1)
      group.name = base::text(group.name, " (", group.runs.size(), " runs of one deck)");
  }
  return groups;
}

namespace {

// The mean over the runs at each point of the one with most points, as long as all have come there.
ChartTrace trace_of(const RunGroup& group, const std::string& metric, Style style) {
  ChartTrace trace{.name = group.name, .style = style, .band = group.runs.size() > 1};
  for (const Bin& bin : group.runs.front()->series(metric).bins()) {
    const double x = bin.middle();
    double sum = 0, low = INFINITY, high = -INFINITY;
    bool all = true;
    for (const RunHistory* run : group.runs) {
      const Bin* here = bin_at(run->series(metric), x);
      all = all && here;
      if (!here) break;
      sum += here->mean();
      low = std::min(low, here->mean());
      high = std::max(high, here->mean());
    }
    if (!all) break;
    trace.points.push_back({x, sum / static_cast<double>(group.runs.size()), low, high});
  }
  return trace;
}

}  // namespace

std::vector<ChartSection> charts_beside(const std::vector<RunGroup>& groups) {
  std::vector<ChartSection> sections;
  for (const ChartRow& row : chart_rows()) {
    for (const TraceRow& one : row.traces) {
      if (one.style == Style::dashed) continue;  // a limit, or a second view of the same
      Chart chart{
          row.title, one.style == Style::dots ? "evaluation" : "", row.unit, row.from_zero, {}};
      if (row.traces.size() > 1 && one.style != Style::dots) chart.note = one.label;
      for (const RunGroup& group : groups)
        chart.traces.push_back(trace_of(group, one.metric, one.style));
      const bool any = std::ranges::any_of(
          chart.traces, [](const ChartTrace& trace) { return !trace.points.empty(); });
      if (any) add(sections, row.section, std::move(chart));
    }
  }
  return sections;
}

}  // namespace trireme::report
