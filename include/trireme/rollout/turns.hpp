// How ranks take a step together while each of them waits for others: a token of a replica, a pass
// of the models of the reward ranks. The first rank begins it when all are there.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "trireme/comm/comm.hpp"
#include "trireme/comm/mailbox.hpp"

namespace trireme::rollout {

class Turns {
 public:
  // Collective over `ranks`; nothing to do where that is one rank or a null view.
  Turns(const comm::CommView& ranks, const std::string& name);

  // Any number of times while this rank waits. True: it takes part in a step now, and so do the
  // others. `wanted` counts on the first rank. Local.
  bool next(bool wanted);
  // Behind each wait, before this rank does anything else: `step` for what the first rank has
  // begun. Collective over the ranks.
  void settle(const std::function<void()>& step);

 private:
  enum class Turn : int32_t { here, step, end };
  void announce();

  bool leads_;
  int others_;  // ranks beside this one
  std::optional<comm::Mailbox<Turn>> mail_;
  int here_ = 0;            // on the first rank: those that wait, too
  bool announced_ = false;  // on the others
  bool ended_ = false;
};

}  // namespace trireme::rollout
