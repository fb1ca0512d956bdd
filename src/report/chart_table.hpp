// Which charts a page has, as a table of metrics.
#pragma once

#include <vector>

#include "report/svg_chart.hpp"

namespace trireme::report {

// A trace of a chart: which metric, and how it is drawn. A band is the range between two metrics,
// or the metric +- another one.
struct TraceRow {
  const char* metric;
  const char* label;
  ChartTrace::Style style = ChartTrace::Style::line;
  const char* low = "";
  const char* high = "";
  const char* deviation = "";
};

struct ChartRow {
  const char* section;
  const char* title;
  const char* note;
  Unit unit;
  bool from_zero;
  std::vector<TraceRow> traces;
};

// In the order of the page.
const std::vector<ChartRow>& chart_rows();

}  // namespace trireme::report
