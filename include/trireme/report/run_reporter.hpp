// Reports of a run, while it runs and at its end: status.json, report.html and the sinks of its
// metrics.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "trireme/report/iteration_metrics.hpp"
#include "trireme/report/metrics_sink.hpp"
#include "trireme/report/run_history.hpp"

namespace trireme::report {

// On rank 0. What cannot be written is a warning (side_output).
class RunReporter {
 public:
  // Adds this start to status.json. `facts`: command, name, model, iterations, and one start.
  // `sinks`: the words of report.sinks. metrics.jsonl is open, cut to what the run goes on from.
  RunReporter(std::filesystem::path run, RunRecord facts, const std::vector<std::string>& sinks);
  RunReporter(const RunReporter&) = delete;
  // Without end() before, the run ended with an error: status.json says so.
  ~RunReporter();

  // An iteration is in metrics.jsonl, as this line: for the console and the sinks.
  void add(const IterationMetrics& metrics, const std::string& line);
  // report.html of a run that goes on. Reads what the run has written since the last time.
  void write();
  // The run ends: `how` is "done" or "stopped".
  void end(int64_t exit_code, const std::string& how);
  // Where the files are, into the log.
  void say_where(const std::string& trace_file, const std::filesystem::path& checkpoints) const;

 private:
  struct Sink {
    std::string name;
    std::unique_ptr<MetricsSink> sink;  // null: it could not be written, and is made again
    int64_t newest = 0;                 // iteration that it has
  };
  void add(Sink& sink, const MetricLine& line);
  void write_record();
  void write_page(bool alive);

  std::filesystem::path folder_;
  RunRecord record_;
  RunHistory history_;
  std::vector<Sink> sinks_;
  double took_ = 0;      // seconds of the iterations of this start
  int64_t counted_ = 0;  // these iterations
};

}  // namespace trireme::report
