#include "torch/torch.hpp"

#include "trireme/learn/group_filter.hpp"

#include <algorithm>
#include <cmath>
#include <span>
#include <string>

#include "trireme/base/error.hpp"
#include "trireme/base/log.hpp"
#include "trireme/base/text.hpp"
#include "trireme/learn/iteration_numbers.hpp"

namespace trireme::learn {
namespace {

// Ids of the training prompts of an iteration; those above are the evaluation's.
constexpr int64_t most_prompts = int64_t{1} << 19;

}  // namespace

GroupFilter::GroupFilter(const config::Options& options, const comm::CommView& world, const Samples& surplus, double share_before)
    : options_(options), world_(world), share_before_(share_before),
      groups_(informative_groups(world, surplus, options.algo.dynamic_filtering_range)), samples_(surplus) {}

int64_t GroupFilter::missing() const { return std::max<int64_t>(0, options_.rollout.batch_size - std::ssize(groups_)); }

double GroupFilter::informative_share() const {
  const auto batch = static_cast<double>(options_.rollout.batch_size);
  return (share_before_ * batch + static_cast<double>(informative_)) / (batch + static_cast<double>(drawn_));
}

std::string GroupFilter::shortage() const {
  return base::text("dynamic filtering found only ", groups_.size(), " of ", options_.rollout.batch_size,
                    " prompts whose mean reward lies inside algo.dynamic_filtering_range, ", drawn_,
                    " were drawn: the task is too easy or too hard for this model, or the range too narrow");
}

int64_t GroupFilter::next_draw() {
  if (missing() == 0) return 0;
  const auto& algo = options_.algo;
  const int64_t batch = options_.rollout.batch_size;
  if (drawn_ >= (complaints_ + 1) * algo.dynamic_filtering_patience * batch) {
    ++complaints_;
    VALIDATE(algo.dynamic_filtering_shortage != config::FilteringShortage::stop, ExitCode::bad_data, shortage());
    if (world_.rank() == 0) log::warning(shortage());
  }
  if (complaints_ > 0 && !groups_.empty() && algo.dynamic_filtering_shortage == config::FilteringShortage::smaller) return 0;
  VALIDATE(drawn_ + batch <= most_prompts, ExitCode::bad_data, shortage(), ". One iteration cannot draw more than ", most_prompts);
  const double fewest = 1 / static_cast<double>(batch);
  const double wish = std::ceil(static_cast<double>(missing()) / std::max(informative_share(), fewest));
  return std::min(batch, static_cast<int64_t>(wish));
}

void GroupFilter::add(const Samples& samples, int64_t prompts) {
  const auto found = informative_groups(world_, samples, options_.algo.dynamic_filtering_range);
  groups_.insert(groups_.end(), found.begin(), found.end());
  for (int64_t i = 0; i < samples.size(); ++i) {
    if (std::ranges::binary_search(found, group_of(samples.id[static_cast<size_t>(i)]))) samples_.append(samples, i);
  }
  drawn_ += prompts;
  informative_ += std::ssize(found);
}

GroupFilter::Result GroupFilter::finish(report::IterationMetrics& metrics) const {
  const size_t taken = std::min(groups_.size(), static_cast<size_t>(options_.rollout.batch_size));
  const std::span<const uint64_t> batch = std::span(groups_).first(taken), rest = std::span(groups_).subspan(taken);
  Result result{.batch = {}, .surplus = {}, .informative_share = informative_share(), .skipped = drawn_ - informative_};
  for (int64_t i = 0; i < samples_.size(); ++i) {
    const uint64_t group = group_of(samples_.id[static_cast<size_t>(i)]);
    if (std::ranges::binary_search(batch, group)) result.batch.append(samples_, i);
    if (std::ranges::binary_search(rest, group)) result.surplus.append(samples_, i);
  }
  metrics.set("filter_drawn", static_cast<double>(drawn_));
  metrics.set("filter_skipped", static_cast<double>(result.skipped));
  metrics.set("filter_surplus", static_cast<double>(rest.size()));
  return result;
}

}  // namespace trireme::learn
