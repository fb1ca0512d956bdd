#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <system_error>
#include <vector>

#include "report/html_text.hpp"
#include "report/page_parts.hpp"
#include "report/run_charts.hpp"
#include "trireme/base/text.hpp"
#include "trireme/report/metrics_file.hpp"
#include "trireme/report/run_notes.hpp"
#include "trireme/report/run_page.hpp"

namespace trireme::report {
namespace {

constexpr size_t problems_shown = 5;
constexpr int plot_width = 60, plot_height = 8;

size_t characters(std::string_view text) {
  return static_cast<size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

// Broken between words; lines after the first begin with `indent`.
std::string wrapped(const std::string& text, int columns, const std::string& indent) {
  const auto most = static_cast<size_t>(std::max(columns, 20));
  size_t begin = std::min(text.find_first_not_of(' '), text.size());
  std::string out, line = text.substr(0, begin);
  bool fresh = true;  // no word on the line yet
  while (begin < text.size()) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    begin = end + 1;
    if (!fresh && characters(line) + 1 + characters(word) > most) {
      out += line + "\n";
      line = indent;
      fresh = true;
    }
    line += (fresh ? "" : " ") + word;
    fresh = false;
  }
  return out + line + "\n";
}

std::string padded(const std::string& text, size_t width) {
  const size_t wide = characters(text);
  return text + std::string(wide < width ? width - wide : 0, ' ');
}

std::string head(const ShownRun& shown) {
  const RunHistory& run = *shown.run;
  const RunRecord& record = run.record();
  std::vector<std::string> parts;
  const int64_t done = run.last().iteration;
  const int64_t all = run.iterations();
  parts.push_back(all > 0
                      ? base::text("iteration ", done, " of ", all, " (", 100 * done / all, " %)")
                      : base::text("iteration ", done));
  if (shown.state.standing == Standing::running) parts.push_back(time_left(run));
  const double epoch = run.last().get("epoch");
  if (!std::isnan(epoch)) parts.push_back("epoch " + base::fixed(epoch, 2));
  parts.push_back(record.command);
  if (!record.starts.empty()) parts.push_back(base::text(record.starts.back().ranks, " ranks"));
  if (record.starts.size() > 1) parts.push_back(base::text(record.starts.size(), " starts"));
  if (run.last().time > 0) parts.push_back("newest iteration " + clock_text(run.last().time));
  std::erase(parts, "");
  return base::join(parts);
}

std::string table(const RunHistory& run) {
  const auto metrics = key_metrics({&run});
  if (metrics.empty()) return "";
  std::string out = base::text("\n", padded("", 26), padded("first", 12), padded("now", 12),
                               padded("least", 12), "most\n");
  for (const KeyMetric& metric : metrics) {
    const Series& series = run.series(metric.name);
    const auto cell = [&](double value) { return padded(with_unit(value, metric.unit), 12); };
    out += base::text("  ", padded(metric.label, 24), cell(series.first()), cell(series.last()),
                      cell(series.low()), with_unit(series.high(), metric.unit), "\n");
  }
  return out;
}

std::string plots(const RunHistory& run) {
  std::string out;
  for (const char* name : {"reward", "loss", "eval_reward", "eval_loss"}) {
    std::vector<double> values;
    const auto& bins = run.series(name).bins();
    for (const Bin& bin : bins) values.push_back(bin.mean());
    const PlotSpan span =
        bins.empty() ? PlotSpan{} : PlotSpan{bins.front().first, bins.back().last};
    const std::string plot = text_plot(values, base::text("mean ", name, " by iteration"),
                                       plot_width, plot_height, span);
    if (!plot.empty()) out += "\n" + plot;
  }
  return out;
}

std::string problems(const RunHistory& run, int columns) {
  const auto& all = run.problems();
  if (all.empty()) return "";
  std::string out = base::text(
      "\nwarnings",
      all.size() > problems_shown ? base::text(" (the newest of ", all.size(), ")") : std::string(),
      ":\n");
  const size_t first = all.size() > problems_shown ? all.size() - problems_shown : 0;
  for (size_t i = first; i < all.size(); ++i)
    out += wrapped(base::text("  ", all[i].time, " ", visible(all[i].text),
                              all[i].times > 1 ? base::text(" (", all[i].times, " times)") : ""),
                   columns, "    ");
  return out;
}

}  // namespace

std::string status_text(const ShownRun& shown, int columns) {
  const RunHistory& run = *shown.run;
  std::string out =
      wrapped(visible(base::text(run.name(), ": ", shown.state.words)), columns, "  ");
  out += wrapped("  " + head(shown), columns, "  ");
  if (run.newest_checkpoint() >= 0) {
    const int64_t lost = run.last().iteration - run.newest_checkpoint();
    out += wrapped(base::text("  checkpoint of iteration ", run.newest_checkpoint(), " in ",
                              run.checkpoints().string(),
                              lost > 0 ? base::text("; ", lost, " iterations since") : ""),
                   columns, "    ");
  }
  if (run.last().iteration == 0) out += "  no iteration is finished yet\n";
  out += table(run) + plots(run);
  const auto notes = notes_on(run);
  if (!notes.empty()) out += "\nnotes:\n";
  for (const RunNote& note : notes)
    out += wrapped(base::text("  ", note.what, " ", note.advice), columns, "    ");
  out += problems(run, columns);
  std::error_code error;
  if (std::filesystem::exists(run.folder() / page_name, error))
    out += base::text("\nreport: ", (run.folder() / page_name).string(), "\n");
  if (shown.state.standing == Standing::stopped || shown.state.standing == Standing::ended)
    out += base::text("to continue: ", command_of(run), "\n");
  return out;
}

}  // namespace trireme::report
