#include "torch/torch.hpp"

#include "trireme/rollout/group_news.hpp"

#include <algorithm>
#include <utility>

namespace trireme::rollout {

Samples GroupNews::finished(const Samples& sequence) {
  const uint64_t group = group_of(sequence.id.front());
  Writing& one = writing_.at(group);
  one.longest = std::max(one.longest, sequence.response_len(0));
  one.tokens += sequence.response_len(0);
  const bool whole = --one.missing == 0;
  if (whole)
    mail_.post(roles_.map.generator.front(),
               {.kind = Kind::written, .group = group, .tokens = one.longest});
  if (buffer_.policy().order != Order::shortest) return sequence;
  one.held.append(sequence);
  return whole ? std::exchange(one.held, {}) : Samples{};
}

void GroupNews::left(uint64_t group) {
  if (const auto one = writing_.extract(group)) dropped_ += one.mapped().tokens;
  mail_.post(roles_.map.generator.front(), {.kind = Kind::left, .group = group});
}

void GroupNews::receive() {
  while (const auto message = mail_.take()) receive(*message);
}

void GroupNews::receive(const Message& message) {
  switch (message.kind) {
    case Kind::written: return buffer_.written(message.group, message.tokens);
    case Kind::left: return buffer_.left(message.group);
    case Kind::longest: longest_ = std::min(longest_, message.tokens); return;
    case Kind::choice: choices_.push_back(message.choice); return;
  }
}

void GroupNews::decide(bool stop) {
  if (buffer_.longest() < told_) {
    told_ = buffer_.longest();
    for (const int rank : roles_.map.generator)
      mail_.post(rank, {.kind = Kind::longest, .tokens = told_});
  }
  auto choice = buffer_.choose();
  if (!choice && !stop) return;
  if (!choice) choice = GroupBuffer::Choice{.groups = {}, .surplus = {}, .stopped = true};
  decided_ = true;
  told_ = any_length;
  for (int rank = 0; rank < roles_.world.size(); ++rank)
    mail_.post(rank, {.kind = Kind::choice, .choice = *choice});
}

bool GroupNews::poll(bool stop) {
  receive();
  if (!decides()) return !choices_.empty();
  if (!decided_) {
    decide(stop);
    receive();
  }
  // The others wait for it here, and this rank may not come back before they have it.
  return !choices_.empty() && !mail_.congested();
}

GroupBuffer::Choice GroupNews::take() {
  GroupBuffer::Choice choice = std::move(choices_.front());
  choices_.pop_front();
  for (const uint64_t group : choice.surplus) {
    if (const auto one = writing_.extract(group)) dropped_ += one.mapped().tokens;
  }
  for (const uint64_t group : choice.groups) writing_.erase(group);
  longest_ = any_length;
  decided_ = false;
  return choice;
}

}  // namespace trireme::rollout
