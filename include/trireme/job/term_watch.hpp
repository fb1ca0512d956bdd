// After SIGTERM a scheduler kills the job when its grace is over, wherever the ranks are. The watch
// leaves before that, with an exit code that says how the run stands: from a thread of its own,
// since the main thread may wait in a collective.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

namespace trireme::job {

// How a rank stands after SIGTERM.
struct TermFacts {
  double since = 0;  // seconds since the signal
  double grace = 0;  // seconds from SIGTERM to SIGKILL; 0: not known, take all the time
  std::optional<double> to_commit;  // seconds that the rest of the iteration and a checkpoint take;
                                    // nullopt: not known
  bool saving = false;              // a checkpoint is being written
  bool leads =
      false;  // the rank that may decide by to_commit; the others follow when the time is up
};

enum class TermAction : uint8_t { go_on, leave };

// Leaves when what is left of the grace is too short for the rest of the iteration and a
// checkpoint, or when it is nearly over: the last quarter of it, at most 2 seconds, is for ending
// the job. A save in progress gets all the time there is.
TermAction on_term(const TermFacts& facts);

class TermWatch {
 public:
  // The thread asks `facts` (since is filled in) ten times a second once SIGTERM or SIGINT came,
  // and calls `leave`, which ends the job and does not return, when it is time. Both are called
  // from the thread and must not wait for the main thread.
  TermWatch(std::function<TermFacts()> facts, std::function<void()> leave);
  TermWatch(const TermWatch&) = delete;
  ~TermWatch();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme::job
