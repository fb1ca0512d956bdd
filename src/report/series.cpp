#include "trireme/report/series.hpp"

#include <algorithm>
#include <cmath>

namespace trireme::report {
namespace {

void join(Bin& into, const Bin& more) {
  into.last = more.last;
  into.count += more.count;
  into.sum += more.sum;
  into.low = std::min(into.low, more.low);
  into.high = std::max(into.high, more.high);
}

}  // namespace

void Series::add(int64_t iteration, double value) {
  if (!std::isfinite(value)) return;
  last_ = value;
  const Bin one{iteration, iteration, 1, value, value, value};
  if (!bins_.empty() && bins_.back().count < width_) return join(bins_.back(), one);
  if (bins_.size() == most_bins) {
    for (size_t i = 0; i < most_bins / 2; ++i) {
      bins_[i] = bins_[2 * i];
      join(bins_[i], bins_[2 * i + 1]);
    }
    bins_.resize(most_bins / 2);
    width_ *= 2;
  }
  bins_.push_back(one);
}

int64_t Series::count() const {
  int64_t all = 0;
  for (const Bin& bin : bins_) all += bin.count;
  return all;
}

double Series::first() const { return bins_.empty() ? 0 : bins_.front().mean(); }

double Series::low() const {
  return bins_.empty() ? 0 : std::ranges::min_element(bins_, {}, &Bin::low)->low;
}

double Series::high() const {
  return bins_.empty() ? 0 : std::ranges::max_element(bins_, {}, &Bin::high)->high;
}

bool Series::varies() const { return high() > low(); }

double Series::mean_of(double begin, double end) const {
  if (bins_.empty()) return 0;
  const auto all = static_cast<double>(bins_.size());
  const size_t from = std::min(static_cast<size_t>(begin * all), bins_.size() - 1);
  const size_t to = std::clamp(static_cast<size_t>(std::ceil(end * all)), from + 1, bins_.size());
  double sum = 0;
  int64_t count = 0;
  for (size_t i = from; i < to; ++i) {
    sum += bins_[i].sum;
    count += bins_[i].count;
  }
  return sum / static_cast<double>(count);
}

double Series::noise() const {
  if (bins_.size() < 3) return 0;
  double squares = 0;
  for (size_t i = 1; i < bins_.size(); ++i)
    squares += std::pow(bins_[i].mean() - bins_[i - 1].mean(), 2);
  const double variance = squares / (2 * static_cast<double>(bins_.size() - 1));
  return std::sqrt(variance / std::max(1.0, static_cast<double>(bins_.size()) / 4));
}

}  // namespace trireme::report
