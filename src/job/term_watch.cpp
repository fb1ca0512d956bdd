#include "trireme/job/term_watch.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "trireme/job/signals.hpp"

namespace trireme::job {

TermAction on_term(const TermFacts& facts) {
  if (facts.grace <= 0) return TermAction::go_on;
  const double reserve = std::min(2.0, facts.grace / 4);
  // Rank 0 speaks for all; the others act alone only when it does not, for a signal that it did not
  // get.
  const double end = facts.grace - (facts.leads ? reserve : reserve / 2);
  if (facts.since >= end) return TermAction::leave;
  const bool hopeless = facts.to_commit && facts.since + *facts.to_commit > end;
  return facts.leads && !facts.saving && hopeless ? TermAction::leave : TermAction::go_on;
}

struct TermWatch::State {
  std::function<TermFacts()> facts;
  std::function<void()> leave;
  std::mutex mutex;
  std::condition_variable wake;
  bool done = false;
  std::thread thread;

  void watch() {
    std::unique_lock lock(mutex);
    while (!wake.wait_for(lock, std::chrono::milliseconds(100), [this] { return done; })) {
      const auto since = seconds_since_terminate();
      if (!since) continue;
      TermFacts now = facts();
      now.since = *since;
      if (on_term(now) == TermAction::leave) leave();
    }
  }
};

TermWatch::TermWatch(std::function<TermFacts()> facts, std::function<void()> leave)
    : state_(std::make_unique<State>()) {
  state_->facts = std::move(facts);
  state_->leave = std::move(leave);
  state_->thread = std::thread([state = state_.get()] { state->watch(); });
}

TermWatch::~TermWatch() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->done = true;
  }
  state_->wake.notify_all();
  state_->thread.join();
}

}  // namespace trireme::job
