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

GroupFilter::GroupFilter(const config::Options& options, const comm::CommView& world,
                         const Samples& surplus, const FilterState& state)
    : options_(options),
      world_(world),
      state_(state),
      groups_(informative_groups(world, surplus, options.algo.dynamic_filtering_range)),
      samples_(surplus) {}

int64_t GroupFilter::missing() const {
  return std::max<int64_t>(0, options_.rollout.batch_size - std::ssize(groups_));
}

double GroupFilter::informative_share() const {
  const auto batch = static_cast<double>(options_.rollout.batch_size);
  return (state_.share_before * batch + static_cast<double>(state_.informative)) /
         (batch + static_cast<double>(state_.seen));
}

std::string GroupFilter::shortage() const {
  return base::text(
      "dynamic filtering found only ", groups_.size(), " of ", options_.rollout.batch_size,
      " prompts whose mean reward lies inside algo.dynamic_filtering_range, ", state_.drawn,
      " were drawn: the task is too easy or too hard for this model, or the range too narrow");
}

bool GroupFilter::makes_do() const {
  return state_.complaints > 0 && !groups_.empty() &&
         options_.algo.dynamic_filtering_shortage == config::FilteringShortage::smaller;
}

bool GroupFilter::done() const { return missing() == 0 || makes_do(); }

int64_t GroupFilter::next_ordinal() const {
  return options_.train.async_depth == 0 ? state_.drawn
                                         : state_.draws * options_.rollout.batch_size;
}

void GroupFilter::begun(int64_t prompts) {
  state_.drawn += prompts;
  ++state_.draws;
}

int64_t GroupFilter::next_draw(const DrawsUnderWay& under_way, int64_t ahead) {
  const auto& algo = options_.algo;
  const int64_t batch = options_.rollout.batch_size;
  const double share = std::max(informative_share(), 1 / static_cast<double>(batch));
  const double wanted = static_cast<double>((ahead + 1) * batch - std::ssize(groups_)) -
                        share * static_cast<double>(under_way.prompts);
  if (done() || wanted <= 0 || under_way.draws > ahead) return 0;
  if (state_.drawn >= (state_.complaints + 1) * algo.dynamic_filtering_patience * batch) {
    ++state_.complaints;
    VALIDATE(algo.dynamic_filtering_shortage != config::FilteringShortage::stop, ExitCode::bad_data,
             shortage());
    if (world_.rank() == 0) log::warning(shortage());
  }
  if (makes_do()) return 0;
  VALIDATE(next_ordinal() + batch <= most_prompts, ExitCode::bad_data, shortage(),
           ". One iteration cannot draw more than ", most_prompts);
  return std::min(batch, static_cast<int64_t>(std::ceil(wanted / share)));
}

void GroupFilter::add(const Samples& samples, int64_t prompts) {
  const auto found = informative_groups(world_, samples, options_.algo.dynamic_filtering_range);
  groups_.insert(groups_.end(), found.begin(), found.end());
  for (int64_t i = 0; i < samples.size(); ++i) {
    if (std::ranges::binary_search(found, group_of(samples.id[static_cast<size_t>(i)])))
      samples_.append(samples, i);
  }
  state_.seen += prompts;
  state_.informative += std::ssize(found);
}

GroupFilter::Result GroupFilter::finish(report::IterationMetrics& metrics) const {
  const size_t taken = std::min(groups_.size(), static_cast<size_t>(options_.rollout.batch_size));
  const std::span<const uint64_t> batch = std::span(groups_).first(taken),
                                  rest = std::span(groups_).subspan(taken);
  Result result{.batch = {},
                .surplus = {},
                .next = {.share_before = informative_share()},
                .skipped = state_.seen - state_.informative};
  for (int64_t i = 0; i < samples_.size(); ++i) {
    const uint64_t group = group_of(samples_.id[static_cast<size_t>(i)]);
    if (std::ranges::binary_search(batch, group)) result.batch.append(samples_, i);
    if (std::ranges::binary_search(rest, group)) result.surplus.append(samples_, i);
  }
  metrics.set("filter_drawn", static_cast<double>(state_.drawn));
  metrics.set("filter_skipped", static_cast<double>(result.skipped));
  metrics.set("filter_surplus", static_cast<double>(rest.size()));
  return result;
}

}  // namespace trireme::learn
