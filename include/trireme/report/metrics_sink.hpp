// Where a run's metrics go besides metrics.jsonl: files for the programs that people look at runs
// with. No sink opens a connection.
//
// metrics.jsonl stays the source: at a start each sink begins anew and is given every line that the
// file has, then each new one. So a sink knows nothing of checkpoints, and one that is added later
// shows the whole run.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/report/metric_line.hpp"

namespace trireme::report {

// Facts about the run that a sink gets.
struct SinkFacts {
  std::filesystem::path run;  // its folder
  std::string name, command;
  double started = 0;  // the first start of the run, seconds since 1970: the same after a restart
  // Keys of the deck that differ from the defaults.
  std::vector<std::pair<std::string, std::string>> deck;
};

class MetricsSink {
 public:
  virtual ~MetricsSink() = default;
  // An iteration. On return its numbers are in a file. Throws UserError where they cannot be.
  virtual void add(const MetricLine& line) = 0;
  // The run ends.
  virtual void end(int64_t exit_code) = 0;
};

// The words of report.sinks.
std::vector<std::string> sink_names();
// Removes what an earlier start has written for this sink. Throws UserError(io_error, permission).
std::unique_ptr<MetricsSink> make_sink(std::string_view name, const SinkFacts& facts);

}  // namespace trireme::report
