// Waiting is one verb. A rank that waits for others, or that is between two micro-batches of a long
// pass, does its share of what they wait for: it takes mail, looks after child processes, takes a
// step with the ranks of its replica. These are the sources of progress. Each is registered once,
// where its role is made; no wait names any of them. The waits also know whether the run is to
// stop, and answer it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trireme/comm/comm.hpp"
#include "trireme/job/signals.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::comm {

// A rank's next action after a wait or a micro-batch.
enum class Then : uint8_t { go_on, leave };

// Whether it may leave there.
enum class May : uint8_t { stay, leave };

// The sources that a wait works on: those of this rank alone, or also those that ranks work on
// together. All ranks of such a source come to the same waits with `joint`.
enum class Help : uint8_t { own, joint };

// Knows what asks a rank to leave.
class LeaveWatch {
 public:
  virtual ~LeaveWatch() = default;
  // Whether anything may make a run leave inside an iteration; the same on all ranks.
  virtual bool leaves_inside() const = 0;
  // The rank could leave now: what asks for it, as far as this rank has heard. Cheap; local.
  virtual job::StopReason wish() = 0;
  // Since then it has waited for others.
  virtual void waited() = 0;
};

class Progress {
 public:
  // Does what it can without waiting; how many things came. Local.
  using Work = std::function<int64_t()>;

  // Keeps a pointer; null: nothing asks to leave.
  explicit Progress(LeaveWatch* watch = nullptr);
  Progress(const Progress&) = delete;
  ~Progress();

  // Sources live as long as this rank waits.
  void add(Work work);
  // Work of `ranks` together: `step`, collective over them, whenever all of them wait and the first
  // one has it `wanted`. No rank waits for others inside it. Collective over `ranks`; a null view
  // is one rank.
  void add_joint(const CommView& ranks, const std::string& name, std::function<bool()> wanted,
                 std::function<void()> step);

  // Works on the sources of this rank once. `received`: the count that what came is added to.
  // Local.
  Then some(May may = May::stay);
  Then some(trace::Name received);
  // Works on the sources until `done`, which is asked after each round. leave: it may, the run is
  // to stop, and `done` does not hold. `what`, for reports of a hang, must live on. Local, but for
  // joint sources.
  Then until(const char* what, const std::function<bool()>& done, May may = May::stay,
             Help help = Help::own);
  // Until all `ranks` are here. Collective over them.
  void meet(const CommView& ranks, Help help = Help::own);

  // Whether all `ranks` leave: the most urgent wish of any of them decides. Collective over them,
  // unless nothing may make a run leave inside an iteration.
  Then agree(const CommView& ranks);
  // Whether any of `ranks` leaves; then all know why. Collective over them.
  Then any(const CommView& ranks, Then mine);
  // Why the ranks left.
  job::StopReason reason() const { return reason_; }

 private:
  class Joint;
  int64_t work();
  bool work(Help help);
  void settle(Help help);
  Then heard();

  LeaveWatch* watch_;
  std::vector<Work> own_;
  std::vector<std::unique_ptr<Joint>> joint_;
  job::StopReason reason_ = job::StopReason::none;
};

// The ranks of a pass over micro-batches, and what they do after each of these.
struct Pass {
  // Nothing between micro-batches.
  Pass(const CommView& of) : ranks(of) {}  // implicit
  Pass(const CommView& of, Progress* helps, May may_leave)
      : ranks(of), progress(helps), may(may_leave) {}
  // After a micro-batch. leave: on all ranks; the rest of the pass is not made, and its results are
  // dropped. Collective over the ranks where they may leave. `received` as in some().
  Then next(trace::Name received) const;

  CommView ranks;
  Progress* progress = nullptr;
  May may = May::stay;
};

}  // namespace trireme::comm
