#include "report/svg_chart.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <utility>

#include "trireme/base/text.hpp"

namespace trireme::report {
namespace {

using Style = ChartTrace::Style;

// The picture, in its own units; text of 11 of them is legible down to 270 pixels of width.
constexpr double width = 300, height = 175;
constexpr double left = 47, right = 294, top = 10, bottom = 152;
constexpr size_t colours = 8;

std::string at(double position) { return base::fixed(position, 1); }

// Numbers of an axis: each is value / factor, followed by the suffix.
struct AxisLabels {
  double step = 1;
  double factor = 1;
  std::string suffix;  // of each number
  std::string unit;    // once, at the top of the axis
};

double nice_step(double span, double most) {
  const double raw = span / most;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  for (const double multiple : {1.0, 2.0, 2.5, 5.0}) {
    if (multiple * power >= raw * (1 - 1e-9)) return multiple * power;
  }
  return 10 * power;
}

AxisLabels labels_for(double low, double high, Unit unit) {
  const double most = std::max(std::abs(low), std::abs(high));
  AxisLabels labels;
  const auto scaled = [&](std::initializer_list<std::pair<double, const char*>> scales) {
    for (const auto& [factor, name] : scales) {
      labels.factor = factor;
      labels.unit = name;
      if (most >= factor) break;
    }
  };
  if (unit == Unit::bytes) {
    scaled({{1099511627776.0, "TiB"}, {1073741824.0, "GiB"}, {1048576.0, "MiB"}, {1024.0, "KiB"}});
  } else if (unit == Unit::seconds) {
    scaled({{7200.0, "h"}, {120.0, "min"}, {1.0, "s"}, {1e-3, "ms"}});
    if (labels.unit == "h") labels.factor = 3600;
    if (labels.unit == "min") labels.factor = 60;
  } else if (unit == Unit::share) {
    labels.factor = 0.01;
    labels.unit = "%";
  } else if (most >= 1e4) {
    scaled({{1e9, "G"}, {1e6, "M"}, {1e3, "k"}});
    labels.suffix = std::exchange(labels.unit, "");
  } else if (most < 0.01 && most > 0) {
    const double power = std::floor(std::log10(most) / 3) * 3;
    labels.factor = std::pow(10, power);
    labels.unit = base::text("×1e", static_cast<int>(power));
  }
  labels.step = nice_step((high - low) / labels.factor, 5) * labels.factor;
  return labels;
}

std::string label_of(double value, const AxisLabels& labels) {
  const double step = labels.step / labels.factor;
  int decimals = 0;  // as many as the step has
  for (double scaled = step; decimals < 6 && std::abs(scaled - std::round(scaled)) > 1e-6;
       ++decimals)
    scaled *= 10;
  double shown = value / labels.factor;
  if (std::abs(shown) < step / 1e6) shown = 0;
  return base::fixed(shown, decimals) + labels.suffix;
}

struct Axes {
  double x_low = 0, x_high = 1, y_low = 0, y_high = 1;
  double x(double value) const {
    return left + (value - x_low) / (x_high - x_low) * (right - left);
  }
  double y(double value) const {
    return bottom - (value - y_low) / (y_high - y_low) * (bottom - top);
  }
};

// Heights of stacked traces: below and at each point.
std::vector<ChartTrace> stacked(const std::vector<ChartTrace>& traces) {
  std::map<double, double> sums;
  std::vector<ChartTrace> out = traces;
  for (ChartTrace& trace : out) {
    if (trace.style != Style::area) continue;
    std::map<double, double> mine;
    for (const ChartPoint& point : trace.points) mine[point.x] = point.y;
    for (const auto& [x, y] : mine) sums.try_emplace(x, 0);
    trace.points.clear();
    for (auto& [x, sum] : sums) {
      const auto found = mine.find(x);
      const double before = sum;
      sum += found == mine.end() ? 0 : found->second;
      trace.points.push_back({x, sum, before, sum});
    }
  }
  return out;
}

Axes axes_for(const Chart& chart, const std::vector<ChartTrace>& traces, const ChartFrame& frame) {
  Axes axes{.x_low = 0, .x_high = std::max(1.0, frame.last_iteration)};
  axes.y_low = std::numeric_limits<double>::infinity();
  axes.y_high = -axes.y_low;
  bool areas = false;
  for (const ChartTrace& trace : traces) {
    areas = areas || trace.style == Style::area;
    for (const ChartPoint& point : trace.points) {
      axes.y_low = std::min(axes.y_low, trace.band ? point.low : point.y);
      axes.y_high = std::max(axes.y_high, trace.band ? point.high : point.y);
    }
  }
  if (chart.from_zero || areas) axes.y_low = std::min(axes.y_low, 0.0);
  if (chart.from_zero || areas) axes.y_high = std::max(axes.y_high, 0.0);
  if (axes.y_high - axes.y_low < 1e-12 * std::max(1.0, std::abs(axes.y_high))) {
    const double some = axes.y_high == 0 ? 1 : std::abs(axes.y_high) / 2;
    axes.y_high += some;
    if (axes.y_low != 0) axes.y_low -= some;
  }
  const double room = 0.04 * (axes.y_high - axes.y_low);
  if (axes.y_low != 0) axes.y_low -= room;
  axes.y_high += room;
  return axes;
}

std::string grid(const Axes& axes, Unit unit) {
  const AxisLabels labels = labels_for(axes.y_low, axes.y_high, unit);
  std::string out;
  for (double k = std::ceil(axes.y_low / labels.step - 1e-9); k * labels.step <= axes.y_high; ++k) {
    const double value = k * labels.step;
    const std::string y = at(axes.y(value));
    out += base::text("<path class=\"", value == 0 ? "zero" : "grid", "\" d=\"M", at(left), " ", y,
                      "H", at(right), "\"/><text class=\"y\" x=\"", at(left - 5), "\" y=\"", y,
                      "\" dy=\".33em\">", label_of(value, labels), "</text>");
  }
  const double step = std::max(1.0, std::ceil(nice_step(axes.x_high - axes.x_low, 5)));
  for (double value = 0; value <= axes.x_high * (1 + 1e-9); value += step) {
    const std::string x = at(axes.x(value));
    out +=
        base::text("<path class=\"tick\" d=\"M", x, " ", at(bottom), "v4\"/><text class=\"x\" x=\"",
                   x, "\" y=\"", at(bottom + 16), "\">", short_number(value), "</text>");
  }
  return base::text(out, "<path class=\"axis\" d=\"M", at(left), " ", at(bottom), "H", at(right),
                    "\"/>", labels.unit.empty() ? "" : "<text class=\"unit\" x=\"2\" y=\"9\">",
                    labels.unit, labels.unit.empty() ? "" : "</text>");
}

std::string polygon(const std::vector<ChartPoint>& points, const Axes& axes) {
  std::string path;
  for (const ChartPoint& point : points)
    path += base::text(path.empty() ? "M" : "L", at(axes.x(point.x)), " ", at(axes.y(point.high)));
  for (auto point = points.rbegin(); point != points.rend(); ++point)
    path += base::text("L", at(axes.x(point->x)), " ", at(axes.y(point->low)));
  return path + "Z";
}

std::string draw(const ChartTrace& trace, size_t colour, const Axes& axes) {
  const std::string name = base::text("c", colour % colours);
  std::string out;
  if (trace.style == Style::area || (trace.band && trace.points.size() > 1)) {
    out += base::text("<path class=\"", trace.style == Style::area ? "area " : "band ", name,
                      "\" d=\"", polygon(trace.points, axes), "\"/>");
  }
  if (trace.style == Style::area) return out;
  const bool dots = trace.style == Style::dots || trace.points.size() == 1;
  std::string path;
  for (const ChartPoint& point : trace.points) {
    const std::string x = at(axes.x(point.x));
    const std::string y = at(axes.y(point.y));
    path += base::text(path.empty() ? "M" : "L", x, " ", y);
    if (dots)
      out +=
          base::text("<circle class=\"dot ", name, "\" cx=\"", x, "\" cy=\"", y, "\" r=\"3.2\"/>");
  }
  if (trace.points.size() > 1)
    out = base::text("<path class=\"line ", trace.style == Style::dashed ? "dashed " : "",
                     trace.style == Style::dots ? "thin " : "", name, "\" d=\"", path, "\"/>", out);
  return out;
}

std::string restarts(const ChartFrame& frame, const Axes& axes) {
  std::string out;
  for (const double after : frame.restarts) {
    const std::string x = at(axes.x(after));
    out += base::text("<g class=\"restart\"><title>started again after iteration ",
                      short_number(after), "</title><path d=\"M", x, " ", at(top), "V", at(bottom),
                      "\"/><path class=\"flag\" d=\"M", x, " ", at(top), "l-4 -6h8z\"/></g>");
  }
  return out;
}

// The values of an iteration, which the browser shows where the pointer rests.
std::string tips(const Chart& chart, const Axes& axes) {
  std::map<double, std::string> texts;
  for (const ChartTrace& trace : chart.traces) {
    for (const ChartPoint& point : trace.points) {
      const bool range = trace.band && (point.low != point.y || point.high != point.y);
      texts[point.x] +=
          base::text("\n", html(trace.name), " ", with_unit(point.y, chart.unit),
                     range ? base::text(" (", with_unit(point.low, chart.unit), " to ",
                                        with_unit(point.high, chart.unit), ")")
                           : "");
    }
  }
  std::string out;
  for (auto here = texts.begin(); here != texts.end(); ++here) {
    const double x = axes.x(here->first);
    const double from = here == texts.begin() ? x - 4 : (axes.x(std::prev(here)->first) + x) / 2;
    const auto next = std::next(here);
    const double to = next == texts.end() ? x + 4 : (axes.x(next->first) + x) / 2;
    out += base::text("<rect class=\"tip\" x=\"", at(from), "\" y=\"", at(top), "\" width=\"",
                      at(std::max(0.5, to - from)), "\" height=\"", at(bottom - top),
                      "\"><title>iteration ", base::fixed(here->first, 0), here->second,
                      "</title></rect>");
  }
  return out;
}

std::string legend(const Chart& chart) {
  std::string out;
  for (size_t i = 0; i < chart.traces.size(); ++i) {
    const ChartTrace& trace = chart.traces[i];
    if (trace.points.empty()) continue;
    const char* mark = trace.style == Style::dots     ? "●"
                       : trace.style == Style::dashed ? "╌"
                       : trace.style == Style::area   ? "■"
                                                      : "━";
    out += base::text("<span><i class=\"k", i % colours, "\">", mark, "</i> ", html(trace.name),
                      " <b>", with_unit(trace.points.back().y, chart.unit), "</b></span>");
  }
  return out;
}

}  // namespace

std::string to_html(const Chart& chart, const ChartFrame& frame) {
  const auto traces = stacked(chart.traces);
  if (std::ranges::all_of(traces, [](const auto& trace) { return trace.points.empty(); }))
    return "";
  const Axes axes = axes_for(chart, traces, frame);
  std::string drawn;
  for (size_t i = traces.size(); i-- > 0;) drawn += draw(traces[i], i, axes);
  return base::text(
      "<figure><figcaption><h3>", html(chart.title), "</h3>", chart.note.empty() ? "" : "<small>",
      html(chart.note), chart.note.empty() ? "" : "</small>", "<p class=\"legend\">", legend(chart),
      "</p></figcaption><svg viewBox=\"0 0 ", width, " ", height, "\" role=\"img\" aria-label=\"",
      html(chart.title), " by iteration\">", grid(axes, chart.unit), restarts(frame, axes), drawn,
      tips(chart, axes), "</svg></figure>\n");
}

}  // namespace trireme::report
