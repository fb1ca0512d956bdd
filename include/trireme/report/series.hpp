// A metric over the iterations of a run, in bounded memory: neighbours are joined once there are
// many.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace trireme::report {

// Neighbouring iterations of a metric.
struct Bin {
  int64_t first = 0, last = 0;  // iterations
  int64_t count = 0;            // values
  double sum = 0, low = 0, high = 0;
  double mean() const { return sum / static_cast<double>(count); }
  double middle() const { return (static_cast<double>(first) + static_cast<double>(last)) / 2; }
};

class Series {
 public:
  static constexpr size_t most_bins = 240;

  // Iterations ascend. Values that are not finite are left out.
  void add(int64_t iteration, double value);

  const std::vector<Bin>& bins() const { return bins_; }
  bool empty() const { return bins_.empty(); }
  int64_t count() const;
  double first() const;  // mean of the first bin
  double last() const { return last_; }
  double low() const;
  double high() const;
  bool varies() const;
  // Mean over the values of the bins from `begin` to `end`, shares of them: (0.75, 1) is the last
  // quarter. At least one bin.
  double mean_of(double begin, double end) const;
  // Standard error of the mean over a quarter, by the differences of neighbours: a trend counts as
  // little of it.
  double noise() const;

 private:
  std::vector<Bin> bins_;
  int64_t width_ = 1;  // values that a bin takes
  double last_ = 0;
};

}  // namespace trireme::report
