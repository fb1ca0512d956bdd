#include "torch/torch.hpp"

#include "trireme/rollout/early_stop.hpp"

#include <algorithm>
#include <span>
#include <utility>

#include "trireme/base/error.hpp"

namespace trireme::rollout {

EarlyStop::EarlyStop(const comm::Roles& roles, const comm::MailLimits& limits)
    : roles_(roles), mail_(roles.world, "early stop", limits) {}

void EarlyStop::begin(const Round& round) {
  EXPECT(round.due <= round.wanted && round.wanted <= std::ssize(round.groups) &&
         std::ranges::is_sorted(round.groups));
  round_ = round;
}

Samples EarlyStop::finished(const Samples& sequence) {
  const uint64_t group = group_of(sequence.id.front());
  Samples& part = parts_[group];
  part.append(sequence);
  if (part.size() < round_.samples) return {};
  const Samples whole = std::move(part);
  parts_.erase(group);
  int64_t longest = 0, tokens = 0;
  for (int64_t i = 0; i < whole.size(); ++i) {
    longest = std::max(longest, whole.response_len(i));
    tokens += whole.response_len(i);
  }
  written_[group] = tokens;
  mail_.post(first(), {.kind = Kind::finished, .group = group, .tokens = longest});
  return whole;
}

void EarlyStop::left(uint64_t group) {
  if (const auto part = parts_.find(group); part != parts_.end()) {
    for (int64_t i = 0; i < part->second.size(); ++i) dropped_ += part->second.response_len(i);
    parts_.erase(part);
  }
  mail_.post(first(), {.kind = Kind::left, .group = group});
}

void EarlyStop::receive() {
  while (const auto message = mail_.take()) receive(*message);
}

void EarlyStop::receive(const Message& message) {
  switch (message.kind) {
    case Kind::finished:
      finished_[message.group] = message.tokens;
      news_ = true;
      return;
    case Kind::left: ++left_; return;
    case Kind::longest: longest_ = std::min(longest_, message.tokens); return;
    case Kind::choice: chosen_.push_back(message.chosen); return;
  }
}

// It only becomes shorter as more groups are finished: what was left stays unwanted.
void EarlyStop::shorten() {
  if (!std::exchange(news_, false) || std::ssize(finished_) < round_.wanted) return;
  int64_t of_due = 0;
  for (const uint64_t group : std::span(round_.groups).first(static_cast<size_t>(round_.due))) {
    const auto found = finished_.find(group);
    if (found == finished_.end()) return;
    of_due = std::max(of_due, found->second);
  }
  std::vector<int64_t> lengths;
  for (const auto& [group, tokens] : finished_) lengths.push_back(tokens);
  const auto last = lengths.begin() + (round_.wanted - 1);
  std::ranges::nth_element(lengths, last);
  const int64_t longest = std::max(of_due, *last);
  if (longest >= longest_) return;
  longest_ = longest;
  for (const int rank : roles_.map.generator)
    mail_.post(rank, {.kind = Kind::longest, .tokens = longest});
}

void EarlyStop::decide(bool stop) {
  Message message;
  if (std::ssize(finished_) + left_ == std::ssize(round_.groups)) {
    for (const auto& [group, tokens] : finished_) {
      const bool taken = tokens <= longest_ && std::ssize(message.chosen.groups) < round_.wanted;
      (taken ? message.chosen.groups : message.chosen.surplus).push_back(group);
    }
  } else if (stop) {
    message.chosen.stopped = true;
  } else {
    return;
  }
  decided_ = true;
  for (int rank = 0; rank < roles_.world.size(); ++rank) mail_.post(rank, message);
}

bool EarlyStop::poll(bool stop) {
  receive();
  if (!decides()) return !chosen_.empty();
  if (!decided_) {
    shorten();
    decide(stop);
    receive();
  }
  return !chosen_.empty() && !mail_.congested();  // the others wait for it here, and this rank may
                                                  // not come back before they have it
}

EarlyStop::Chosen EarlyStop::take() {
  Chosen chosen = std::move(chosen_.front());
  chosen_.pop_front();
  for (const uint64_t group : chosen.surplus) {
    if (const auto mine = written_.find(group); mine != written_.end()) dropped_ += mine->second;
  }
  written_.clear();
  parts_.clear();
  finished_.clear();
  left_ = 0;
  longest_ = any_length;
  decided_ = false;
  return chosen;
}

Samples without(const std::vector<uint64_t>& groups, const Samples& samples) {
  if (groups.empty()) return samples;
  Samples rest;
  for (int64_t i = 0; i < samples.size(); ++i) {
    if (!std::ranges::binary_search(groups, group_of(samples.id[static_cast<size_t>(i)])))
      rest.append(samples, i);
  }
  return rest;
}

}  // namespace trireme::rollout
