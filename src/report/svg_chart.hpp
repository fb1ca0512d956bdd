// A chart as inline SVG with its caption: no script, no style of its own. Colours are the classes
// c0 ... c7 of the page's style sheet.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "report/html_text.hpp"

namespace trireme::report {

struct ChartPoint {
  double x = 0;  // iteration
  double y = 0;
  double low = 0, high = 0;  // of the band
};

struct ChartTrace {
  enum class Style { line, dashed, dots, area };  // areas are stacked in their order
  std::string name = {};
  Style style = Style::line;
  bool band = false;
  std::vector<ChartPoint> points = {};
};

struct Chart {
  std::string title = {};
  std::string note = {};  // beside the title
  Unit unit = Unit::number;
  bool from_zero = false;
  std::vector<ChartTrace> traces = {};
};

// What charts of one page share.
struct ChartFrame {
  double last_iteration = 1;
  std::vector<double> restarts = {};  // iterations after which the run was started again
};

// A <figure>; empty where no trace has a point.
std::string to_html(const Chart& chart, const ChartFrame& frame);

}  // namespace trireme::report
