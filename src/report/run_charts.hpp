// Which charts a page shows: of one run, or of several beside each other.
#pragma once

#include <string>
#include <vector>

#include "report/svg_chart.hpp"
#include "trireme/report/run_history.hpp"

namespace trireme::report {

struct ChartSection {
  std::string title;
  std::vector<Chart> charts;
};

std::vector<ChartSection> charts_of(const RunHistory& run);
ChartFrame frame_of(const RunHistory& run);

// Runs of one deck that differ by their seed.
struct RunGroup {
  std::string name;  // what tells it from the others
  std::vector<const RunHistory*> runs;
};
// In the order of their first runs.
std::vector<RunGroup> groups_of(const std::vector<const RunHistory*>& runs);

// A trace per group: of several runs the mean over them, and their range as a band.
std::vector<ChartSection> charts_beside(const std::vector<RunGroup>& groups);

// Metrics that matter most, those that any of the runs has: for tables and terminals.
struct KeyMetric {
  std::string name, label;
  Unit unit;
};
std::vector<KeyMetric> key_metrics(const std::vector<const RunHistory*>& runs);

}  // namespace trireme::report
