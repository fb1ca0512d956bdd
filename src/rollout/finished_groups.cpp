#include "trireme/rollout/finished_groups.hpp"

#include <iterator>
#include <utility>

namespace trireme::rollout {

FinishedGroups::FinishedGroups(const comm::Roles& roles, const comm::MailLimits& limits,
                               int64_t wanted)
    : roles_(roles),
      wanted_(static_cast<size_t>(wanted)),
      mail_(roles.world, "finished groups", limits) {}

void FinishedGroups::finished(uint64_t group) {
  const auto here = unfinished_.find(group);
  if (--here->second > 0) return;
  unfinished_.erase(here);
  mail_.post(roles_.map.generator.front(), {.choice = false, .chosen = {.groups = {group}}});
}

void FinishedGroups::found(uint64_t group) {
  if (decides()) finished_.insert(group);
}

void FinishedGroups::receive() {
  while (auto message = mail_.take()) {
    if (message->choice) {
      chosen_.push_back(std::move(message->chosen));
    } else {
      finished_.insert(message->chosen.groups.begin(), message->chosen.groups.end());
    }
  }
}

// The oldest of those that are finished.
void FinishedGroups::decide(bool stop) {
  Message message{.choice = true, .chosen = {}};
  if (finished_.size() >= wanted_) {
    const auto end = std::next(finished_.begin(), static_cast<std::ptrdiff_t>(wanted_));
    message.chosen.groups.assign(finished_.begin(), end);
    finished_.erase(finished_.begin(), end);
  } else if (stop) {
    message.chosen.left = true;
  } else {
    return;
  }
  decided_ = true;
  for (int rank = 0; rank < roles_.world.size(); ++rank) mail_.post(rank, message);
}

bool FinishedGroups::poll(bool stop) {
  receive();
  if (decides() && !decided_) decide(stop);
  receive();
  return !chosen_.empty() &&
         !(decides() && mail_.congested());  // the others wait for it here, and this rank may not
                                             // come back before they have it
}

FinishedGroups::Chosen FinishedGroups::take() {
  decided_ = false;
  Chosen chosen = std::move(chosen_.front());
  chosen_.pop_front();
  return chosen;
}

}  // namespace trireme::rollout
