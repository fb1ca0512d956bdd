// A run's output beside its metrics: the progress line, trace.json, and the end.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trireme/base/stopwatch.hpp"
#include "trireme/comm/comm.hpp"
#include "trireme/report/generation_totals.hpp"
#include "trireme/report/iteration_metrics.hpp"
#include "trireme/report/progress_lines.hpp"
#include "trireme/trace/table.hpp"

namespace trireme::report {

class RunOutput {
 public:
  // Of this rank, in words.
  struct Rank {
    std::string roles;
    std::string host;
  };
  // Collective over world: clocks are compared. `trace_file`: in `folder`; empty: no trace.
  // `written` returns the output of all generators; another thread of rank 0 calls it.
  RunOutput(const comm::CommView& world, Rank rank, std::filesystem::path folder,
            std::string trace_file, trace::RolesRun roles_run,
            std::function<base::Written()> written);

  // The main thread begins this phase: for the progress line. Local.
  void begin(const char* phase, int64_t iteration, int64_t iterations) const {
    if (lines_) lines_->begin(phase, iteration, iterations);
  }
  // So many answers of this iteration are begun: likewise.
  void expect(int64_t iteration, int64_t answers) const {
    if (lines_) lines_->expect(iteration, answers);
  }
  // Writes the trace with what was recorded so far. Collective.
  void write_trace() const;
  // The end: trace, table, summary.json, plot. Collective.
  void finish(const std::string& title, const std::vector<double>& curve,
              const IterationMetrics& last, const GenerationTotals& generation) const;

 private:
  comm::CommView world_;
  Rank rank_;
  std::filesystem::path folder_;
  std::string trace_file_;
  trace::RolesRun roles_run_;
  base::Stopwatch since_start_;
  double clock_offset_;
  double origin_;
  std::unique_ptr<ProgressLines> lines_;  // on rank 0
};

}  // namespace trireme::report
