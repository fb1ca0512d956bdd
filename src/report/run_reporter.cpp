#include "trireme/report/run_reporter.hpp"

#include <unistd.h>

#include <array>
#include <exception>
#include <utility>

#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/log.hpp"
#include "trireme/base/terminal.hpp"
#include "trireme/config/deck.hpp"
#include "trireme/report/run_page.hpp"
#include "trireme/report/side_output.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::report {

RunReporter::RunReporter(std::filesystem::path run, RunRecord facts,
                         const std::vector<std::string>& sinks)
    : folder_(std::move(run)), record_(std::move(facts)), history_(folder_) {
  auto earlier = read_run_record(folder_).starts;
  earlier.insert(earlier.end(), record_.starts.begin(), record_.starts.end());
  record_.starts = std::move(earlier);
  write_record();
  const int64_t done = record_.starts.back().after;
  if (done >= record_.iterations)
    log::info(base::text("all ", record_.iterations,
                         " iterations are done: nothing is left to do (raise run.iterations or "
                         "train.num_episodes to go on); the end is written once more"));
  for (const std::string& name : sinks) sinks_.push_back({name, nullptr});
}

void RunReporter::add(const IterationMetrics& metrics, const std::string& text) {
  if (const auto total = metrics.seconds.find("total"); total != metrics.seconds.end()) {
    took_ += total->second;
    ++counted_;
  }
  const double each = counted_ > 0 ? took_ / static_cast<double>(counted_) : 0;
  log::info(to_console(metrics, each * static_cast<double>(metrics.iterations - metrics.iteration),
                       base::terminal_columns(STDERR_FILENO)));
  if (sinks_.empty()) return;
  const auto line = parse_metric_line(text);
  ASSERT(line);
  for (Sink& sink : sinks_) add(sink, *line);
}

// A sink that is made anew is given what metrics.jsonl has: at a start, and after a disk was full.
void RunReporter::add(Sink& sink, const MetricLine& line) {
  const bool written = side_output("report.sinks: " + sink.name, [&] {
    if (!sink.sink) {
      const auto deck = deck_differences(base::read_if_there(folder_ / "deck.toml"),
                                         config::dump_deck(config::Options{}));
      sink.newest = 0;
      sink.sink = make_sink(
          sink.name, {folder_, record_.name, record_.command, record_.starts.front().time, deck});
      LineFollower(folder_ / "metrics.jsonl").read([&](std::string_view earlier) {
        const auto parsed = parse_metric_line(earlier);
        if (!parsed || parsed->iteration <= sink.newest) return;
        sink.sink->add(*parsed);
        sink.newest = parsed->iteration;
      });
    }
    if (line.iteration > sink.newest) sink.sink->add(line);
    sink.newest = line.iteration;
  });
  if (!written) sink.sink.reset();
}

RunReporter::~RunReporter() {
  if (record_.starts.back().ended > 0) return;
  try {
    end(0, "error");
  } catch (const std::exception&) {  // the run is ending with an error of its own
  }
}

void RunReporter::write_record() {
  side_output("status.json", [&] { write_run_record(folder_, record_); });
}

void RunReporter::write_page(bool alive) {
  const trace::Region region{"report page", trace::no_argument, trace::Category::phase};
  side_output(page_name, [&] {
    history_.update();
    const std::array<ShownRun, 1> shown{{{&history_, state_of(history_, alive)}}};
    base::write_file_atomically(folder_ / page_name, page_of(shown, folder_ / page_name));
  });
}

void RunReporter::write() { write_page(true); }

void RunReporter::end(int64_t exit_code, const std::string& how) {
  RunStart& start = record_.starts.back();
  start.ended = wall_clock();
  start.exit_code = exit_code;
  start.how = how;
  write_record();
  for (Sink& sink : sinks_) {
    if (sink.sink) side_output("report.sinks: " + sink.name, [&] { sink.sink->end(exit_code); });
  }
  write_page(false);
}

void RunReporter::say_where(const std::string& trace_file,
                            const std::filesystem::path& checkpoints) const {
  log::info(base::text("report:      ", (folder_ / page_name).string(), " (open it in a browser)"));
  log::info(base::text("metrics:     ", (folder_ / "metrics.jsonl").string()));
  log::info(base::text("trace:       ", (folder_ / trace_file).string(),
                       " (open it in ui.perfetto.dev)"));
  log::info(base::text("checkpoints: ", checkpoints.string(), " (HDF5; look inside with h5ls -r)"));
}

}  // namespace trireme::report
