// How the ranks of a replica write a token together while each of them waits for others: the first rank begins it when all are there.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "trireme/comm/roles.hpp"
#include "trireme/comm/mailbox.hpp"

namespace trireme::rollout {

class ReplicaTurns {
 public:
  // Collective over the replica; nothing to do on ranks that have none, or one of their own.
  explicit ReplicaTurns(const comm::Roles& roles);

  // Any number of times while this rank waits. True: it takes part in a step now, and so do the other ranks of its replica. `wanted` counts on
  // the first rank. Local.
  bool next(bool wanted);
  // Behind each wait, before this rank does anything else: `step` for what the first rank has begun. Collective over the replica.
  void settle(const std::function<void()>& step);

 private:
  enum class Turn : int32_t { here, step, end };
  void announce();

  bool leads_;
  int others_ = 0;               // ranks of the replica beside this one
  std::optional<comm::Mailbox<Turn>> mail_;
  int here_ = 0;                 // on the first rank: those that wait, too
  bool announced_ = false;       // on the others
  bool ended_ = false;
};

}  // namespace trireme::rollout
