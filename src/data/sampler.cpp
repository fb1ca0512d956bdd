#include "trireme/data/sampler.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "trireme/base/error.hpp"
#include "trireme/base/philox.hpp"

namespace trireme::data {

namespace {

void check(const SamplerOptions& options) {
  const int64_t rows = std::accumulate(options.sizes.begin(), options.sizes.end(), int64_t{0});
  VALIDATE(rows > 0, ExitCode::configuration,
           "the data set has no rows to sample from: check data files and max_samples");
  if (options.weights.empty()) return;
  VALIDATE(options.weights.size() == options.sizes.size(), ExitCode::configuration,
           "data weights: ", options.weights.size(), " weights for ", options.sizes.size(),
           " files: give one per file");
  double sum = 0;
  for (size_t i = 0; i < options.weights.size(); ++i) {
    const double weight = options.weights[i];
    VALIDATE(std::isfinite(weight) && weight >= 0, ExitCode::configuration, "data weights: weight ",
             weight, " of file ", i + 1, " is negative or not finite: give a number >= 0");
    VALIDATE(weight == 0 || options.sizes[i] > 0, ExitCode::configuration, "data weights: file ",
             i + 1, " has weight ", weight, " and no usable rows: remove it");
    sum += weight;
  }
  VALIDATE(sum > 0 && std::isfinite(sum), ExitCode::configuration,
           "data weights: all are zero, or their sum is not finite: raise one");
}

}  // namespace

PromptSampler::PromptSampler(SamplerOptions options) : options_(std::move(options)) {
  check(options_);
  if (options_.weights.empty()) {
    const int64_t rows = std::accumulate(options_.sizes.begin(), options_.sizes.end(), int64_t{0});
    streams_.push_back({.size = rows, .weight = 1, .permutation = {}});
    weight_sum_ = 1;
    return;
  }
  int64_t first = 0;
  for (size_t i = 0; i < options_.sizes.size(); ++i) {
    streams_.push_back({.first = first,
                        .size = options_.sizes[i],
                        .weight = options_.weights[i],
                        .permutation = {}});
    first += options_.sizes[i];
    weight_sum_ += options_.weights[i];
  }
}

size_t PromptSampler::furthest_behind() const {
  int64_t drawn = 0;
  for (const Stream& stream : streams_) drawn += stream.taken;
  size_t best = 0;
  double most = -INFINITY;
  for (size_t i = 0; i < streams_.size(); ++i) {
    if (streams_[i].weight == 0) continue;
    const double behind = streams_[i].weight / weight_sum_ * static_cast<double>(drawn + 1) -
                          static_cast<double>(streams_[i].taken);
    if (behind > most) {
      most = behind;
      best = i;
    }
  }
  return best;
}

int64_t PromptSampler::take(size_t index) {
  Stream& stream = streams_[index];
  const int64_t epoch = stream.taken / stream.size;
  const int64_t row = stream.taken % stream.size;
  ++stream.taken;
  if (options_.order == Order::file) return stream.first + row;
  if (stream.permuted_epoch != epoch) {
    // The stream's number in the high bits keeps two sources of one size from being shuffled alike.
    const uint64_t key = static_cast<uint64_t>(index) << 40 | static_cast<uint64_t>(epoch);
    stream.permutation = base::permutation(options_.seed, key, stream.size);
    stream.permuted_epoch = epoch;
  }
  return stream.first + stream.permutation[static_cast<size_t>(row)];
}

std::vector<int64_t> PromptSampler::draw(int64_t n) {
  EXPECT(n >= 0);
  std::vector<int64_t> rows;
  rows.reserve(static_cast<size_t>(n));
  const bool one_stream = options_.weights.empty();
  if (one_stream && options_.epoch_end == EpochEnd::drop_last) {
    Stream& stream = streams_[0];
    VALIDATE(n <= stream.size, ExitCode::configuration, "a batch of ", n,
             " prompts does not fit into a data set of ", stream.size,
             ": lower rollout.batch_size or add data");
    const int64_t left = stream.size - stream.taken % stream.size;
    if (left < n) stream.taken += left;
  }
  for (int64_t i = 0; i < n; ++i) rows.push_back(take(one_stream ? 0 : furthest_behind()));
  return rows;
}

int64_t PromptSampler::epoch() const {
  int64_t epoch = 0;
  for (const Stream& stream : streams_) {
    if (stream.size > 0) epoch = std::max(epoch, stream.taken / stream.size);
  }
  return epoch;
}

double PromptSampler::epochs_drawn() const {
  double taken = 0, rows = 0;
  for (const Stream& stream : streams_) {
    taken += static_cast<double>(stream.taken);
    rows += static_cast<double>(stream.size);
  }
  return taken / rows;
}

int64_t PromptSampler::draws_per_epoch(int64_t n) const {
  EXPECT(n > 0);
  int64_t rows = 0;
  for (const Stream& stream : streams_) rows += stream.size;
  const bool drop = options_.weights.empty() && options_.epoch_end == EpochEnd::drop_last;
  return drop ? rows / n : (rows + n - 1) / n;
}

SamplerState PromptSampler::state() const {
  SamplerState state;
  for (const Stream& stream : streams_) {
    state.sizes.push_back(stream.size);
    state.taken.push_back(stream.taken);
  }
  return state;
}

void PromptSampler::restore(const SamplerState& state) {
  const SamplerState own = this->state();
  const bool fits =
      state.sizes == own.sizes && state.taken.size() == own.taken.size() &&
      std::all_of(state.taken.begin(), state.taken.end(), [](int64_t taken) { return taken >= 0; });
  const auto total = [](const std::vector<int64_t>& sizes) {
    return std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  };
  VALIDATE(fits, ExitCode::bad_data, "the checkpoint's sampler belongs to other data (",
           state.sizes.size(), " streams with ", total(state.sizes), " rows, now ",
           own.sizes.size(), " with ", total(own.sizes),
           "): resume with the data files and weights of the run, or start a new run");
  for (size_t i = 0; i < streams_.size(); ++i) streams_[i].taken = state.taken[i];
}

}  // namespace trireme::data
