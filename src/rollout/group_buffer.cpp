#include "trireme/rollout/group_buffer.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "trireme/base/error.hpp"
#include "trireme/base/samples.hpp"
#include "trireme/base/text.hpp"

namespace trireme::rollout {
namespace {

// Ids of the training prompts of an iteration; those above are the evaluation's.
constexpr int64_t most_prompts = int64_t{1} << 19;

// Iterations for which a group may begin again, since its answers are long; the next one waits for
// it. Fewer make long iterations frequent, more let the same long answers begin again and again.
constexpr int64_t longest_wait = 4;

uint64_t group_id(int64_t iteration, int64_t ordinal) {
  return group_of(request_id(iteration, ordinal, 0));
}

int64_t iteration_of_group(uint64_t group) { return iteration_of(group << 20); }

}  // namespace

GroupPolicy policy_of(const config::Options& options, int64_t iterations) {
  const bool partial = options.train.partial_rollout_enable;
  GroupPolicy policy{.iterations = iterations,
                     .wanted = options.rollout.batch_size,
                     .ahead = partial ? options.train.async_depth : 0,
                     .surplus = options.rollout.over_sampling,
                     .filters = options.algo.dynamic_filtering_enable,
                     .draws_overlap = options.train.async_depth > 0,
                     .patience = options.algo.dynamic_filtering_patience,
                     .shortage = options.algo.dynamic_filtering_shortage};
  if (options.train.partial_rollout_order == config::PartialRolloutOrder::finished)
    policy.order = Order::finished;
  if (policy.surplus > 0) policy.order = Order::shortest;
  return policy;
}

int64_t GroupBuffer::count(State state) const {
  return std::ranges::count_if(groups_, [&](const auto& one) { return one.second.state == state; });
}

int64_t GroupBuffer::missing() const {
  return std::max<int64_t>(0, policy_.wanted - std::ssize(scored_));
}

// Of prompts scored in this iteration and before; what came before counts as one batch.
double GroupBuffer::kept_share() const {
  if (!policy_.filters) return 1;
  const auto batch = static_cast<double>(policy_.wanted);
  return (filter_.share_before * batch + static_cast<double>(filter_.informative)) /
         (batch + static_cast<double>(filter_.seen));
}

std::string GroupBuffer::shortage() const {
  return base::text(
      "dynamic filtering found only ", scored_.size(), " of ", policy_.wanted,
      " prompts whose mean reward lies inside algo.dynamic_filtering_range, ", filter_.drawn,
      " were drawn: the task is too easy or too hard for this model, or the range too narrow");
}

bool GroupBuffer::makes_do() const {
  return filter_.complaints > 0 && !scored_.empty() &&
         policy_.shortage == config::FilteringShortage::smaller;
}

bool GroupBuffer::ready() const { return missing() == 0 || makes_do(); }

int64_t GroupBuffer::next_ordinal() const {
  return policy_.draws_overlap ? filter_.draws * policy_.wanted : filter_.drawn;
}

GroupBuffer::Wish GroupBuffer::to_draw(int64_t iteration) {
  if (ready() || count(State::chosen) > 0) return {};
  const int64_t batch = policy_.wanted;
  const int64_t to_come = std::min(policy_.iterations - iteration + 1, policy_.ahead + 2);
  const int64_t room = std::min((policy_.ahead + 1) * batch + policy_.surplus, to_come * batch);
  const double share = std::max(kept_share(), 1 / static_cast<double>(batch));
  const double wanted =
      static_cast<double>(room - std::ssize(scored_)) - share * static_cast<double>(groups_.size());
  if (wanted <= 0) return {};
  Wish wish{.prompts =
                std::min(batch + policy_.surplus, static_cast<int64_t>(std::ceil(wanted / share)))};
  if (!policy_.filters) return wish;
  if (policy_.order == Order::drawn && draws() > policy_.ahead) return {};
  if (filter_.drawn >= (filter_.complaints + 1) * policy_.patience * batch) {
    ++filter_.complaints;
    VALIDATE(policy_.shortage != config::FilteringShortage::stop, ExitCode::bad_data, shortage());
    wish.warning = shortage();
  }
  if (makes_do()) return {.prompts = 0, .warning = wish.warning};
  VALIDATE(next_ordinal() + batch <= most_prompts, ExitCode::bad_data, shortage(),
           ". One iteration cannot draw more than ", most_prompts);
  return wish;
}

int64_t GroupBuffer::draws() const {
  std::set<int64_t> numbers;
  for (const auto& [id, group] : groups_) numbers.insert(group.draw);
  return std::ssize(numbers);
}

// Each iteration learns from `wanted` groups, so the place of a group among all that were drawn
// says which iteration it is meant for. A filtering run draws as many as it takes; there an id says
// in which iteration that was.
void GroupBuffer::admit(int64_t iteration, std::span<const int64_t> rows) {
  const int64_t batch = policy_.wanted;
  int64_t place = (iteration - 1) * batch + std::ssize(groups_) + std::ssize(scored_);
  // A start with another rollout.batch_size may have groups that were meant for later iterations.
  if (last_ && group_id(1 + place / batch, place % batch) <= *last_)
    place = iteration_of_group(*last_) * batch;
  const int64_t first = next_ordinal();
  for (int64_t i = 0; i < std::ssize(rows); ++i, ++place) {
    const uint64_t id = policy_.filters ? group_id(iteration, first + i)
                                        : group_id(1 + place / batch, place % batch);
    groups_[id] = {.row = rows[static_cast<size_t>(i)]};
    last_ = id;
  }
  if (!policy_.filters) return;
  filter_.drawn += std::ssize(rows);
  ++filter_.draws;
}

GroupBuffer::Draw GroupBuffer::start(int64_t number, int64_t iteration) {
  Draw draw{.iteration = iteration, .groups = {}, .rows = {}};
  iteration_ = iteration;
  if (count(State::chosen) > 0) return draw;  // a start from a checkpoint scores these first
  for (auto& [id, group] : groups_) {
    if (group.state != State::drawn) continue;
    if (policy_.order != Order::shortest)
      draw.iteration = std::max(draw.iteration, iteration_of_group(id));
    draw.groups.push_back(id);
    draw.rows.push_back(group.row);
    group.state = State::writing;
    group.draw = number;
  }
  for (const uint64_t id : draw.groups) groups_[id].iteration = draw.iteration;
  return draw;
}

void GroupBuffer::written(uint64_t group, int64_t tokens) {
  Group& one = groups_.at(group);
  one.state = State::written;
  one.tokens = tokens;
  if (policy_.order == Order::shortest) shorten();
}

void GroupBuffer::left(uint64_t group) { groups_.at(group).state = State::left; }

// The shortest length at which enough groups, and all that are due, are whole. It only becomes
// shorter as more groups are written, so what was left stays unwanted.
void GroupBuffer::shorten() {
  const int64_t wanted = missing();
  if (count(State::written) < wanted) return;
  const uint64_t first_not_due = group_id(std::max<int64_t>(0, iteration_ - longest_wait + 1), 0);
  int64_t of_due = 0, due = 0;
  std::vector<int64_t> lengths;
  for (const auto& [id, group] : groups_) {
    const bool is_due = id < first_not_due && due++ < wanted;
    if (is_due && group.state != State::written) return;
    if (is_due) of_due = std::max(of_due, group.tokens);
    if (group.state == State::written) lengths.push_back(group.tokens);
  }
  const auto last = lengths.begin() + (wanted - 1);
  std::ranges::nth_element(lengths, last);
  longest_ = std::min(longest_, std::max(of_due, *last));
}

bool GroupBuffer::choice_is_known() const {
  return policy_.order == Order::drawn || count(State::chosen) > 0;
}

std::optional<GroupBuffer::Choice> GroupBuffer::choose() const {
  Choice choice;
  const bool chosen_before = count(State::chosen) > 0;
  const auto whole = [&](const Group& group) {
    if (chosen_before) return group.state == State::chosen;
    if (policy_.order == Order::drawn) return group.draw == groups_.begin()->second.draw;
    return group.state == State::written;
  };
  const bool any_number = chosen_before || policy_.order == Order::drawn;
  const int64_t wanted = any_number ? std::ssize(groups_) : missing();
  for (const auto& [id, group] : groups_) {
    if (!whole(group)) continue;
    const bool taken = group.tokens <= longest_ && std::ssize(choice.groups) < wanted;
    if (taken) choice.groups.push_back(id);
    if (!taken && policy_.order == Order::shortest) choice.surplus.push_back(id);
  }
  if (any_number) return choice;
  const bool all_known = count(State::written) + count(State::left) == std::ssize(groups_);
  const bool enough =
      policy_.order == Order::shortest ? all_known : std::ssize(choice.groups) == wanted;
  return enough ? std::optional(choice) : std::nullopt;
}

void GroupBuffer::apply(const Choice& choice) {
  for (auto& [id, group] : groups_) {
    if (std::ranges::binary_search(choice.groups, id)) {
      group.state = State::chosen;
    } else if (policy_.order == Order::shortest) {
      group.state = State::drawn;
      group.tokens = 0;
    }
  }
  longest_ = any_length;
}

void GroupBuffer::scored(std::span<const uint64_t> kept) {
  if (policy_.filters) {
    filter_.seen += count(State::chosen);
    filter_.informative += std::ssize(kept);
  }
  std::erase_if(groups_, [](const auto& one) { return one.second.state == State::chosen; });
  scored_.insert(scored_.end(), kept.begin(), kept.end());
}

GroupBuffer::Taken GroupBuffer::take() {
  const auto end = scored_.begin() + std::min<int64_t>(policy_.wanted, std::ssize(scored_));
  Taken taken{.groups = {scored_.begin(), end},
              .drawn = filter_.drawn,
              .skipped = filter_.seen - filter_.informative};
  scored_.erase(scored_.begin(), end);
  taken.rest = std::ssize(scored_);
  std::ranges::sort(taken.groups);
  if (policy_.filters) filter_ = {.share_before = kept_share()};
  return taken;
}

int64_t GroupBuffer::carried(int64_t iteration) const {
  return std::ranges::count_if(groups_, [&](const auto& one) {
    return one.second.state != State::chosen && one.second.iteration <= iteration;
  });
}

std::vector<CarriedPrompt> GroupBuffer::waiting() const {
  std::vector<CarriedPrompt> prompts;
  for (const auto& [id, group] : groups_) {
    if (group.state == State::drawn) prompts.push_back({id, group.row});
  }
  return prompts;
}

void GroupBuffer::restore(const std::vector<CarriedPrompt>& waiting, const FilterState& filter) {
  for (const CarriedPrompt& one : waiting) {
    groups_[one.group] = {.row = one.row};
    last_ = std::max(last_.value_or(0), one.group);
  }
  filter_ = filter;
}

void GroupBuffer::restore_draw(int64_t number, int64_t iteration, std::span<const uint64_t> groups,
                               std::span<const uint64_t> unfinished) {
  // Over-sampling stores what it has chosen, and nothing that is not whole.
  const State whole = policy_.order == Order::shortest ? State::chosen : State::written;
  for (const uint64_t id : groups) {
    const bool is_whole = !std::ranges::binary_search(unfinished, id);
    groups_[id] = {
        .state = is_whole ? whole : State::writing, .draw = number, .iteration = iteration};
    last_ = std::max(last_.value_or(0), id);
  }
}

}  // namespace trireme::rollout
