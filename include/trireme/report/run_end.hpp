// What stands at the end of a run: summary.json, and in the log the table of the roles, what
// follows from it, and the curve.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "trireme/comm/comm.hpp"
#include "trireme/report/generation_totals.hpp"
#include "trireme/report/iteration_metrics.hpp"
#include "trireme/trace/table.hpp"

namespace trireme::report {

struct RunEnd {
  double seconds = 0;  // of the run
  trace::RolesRun roles_run = trace::RolesRun::in_turns;
  GenerationTotals generation;
  IterationMetrics last;
  std::string title;  // of the curve
  std::vector<double> curve;
};

// Collective over world; rank 0 writes into `folder`. `roles`: of this rank, in words.
void write_end(const comm::CommView& world, const std::string& roles,
               const std::filesystem::path& folder, const RunEnd& end);

}  // namespace trireme::report
