// What may stop a run, or make it save: conditions, the most urgent first. The first that has a
// reason counts, and those behind it are not asked.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "trireme/job/signals.hpp"

namespace trireme::job {

class StopConditions {
 public:
  using Condition = std::function<StopReason()>;

  void add(Condition condition) { conditions_.push_back(std::move(condition)); }
  // From any thread, once all are added, as far as the conditions allow it.
  StopReason ask() const {
    for (const Condition& condition : conditions_) {
      if (const StopReason reason = condition(); reason != StopReason::none) return reason;
    }
    return StopReason::none;
  }

 private:
  std::vector<Condition> conditions_;
};

// The run that SIGUSR1 or SIGUSR2 was for is over: another one of this process is not asked by it.
// SIGTERM and SIGINT are for the process.
void forget_requests();

}  // namespace trireme::job
