// Moves samples between roles: packed, never padded, the same way whether the roles share ranks or not.
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/base/samples.hpp"
#include "trireme/comm/comm.hpp"

namespace trireme::driver {

// What every rank knows of every sequence of the rollout; in id order.
struct Card {
  uint64_t id = 0;
  int64_t tokens = 0;
};
using Cards = std::vector<Card>;
std::vector<int64_t> lengths_of(const Cards& cards);
// The rank of `targets` that gets each sequence, token counts near even; the same on every rank, without a message. For many
// thousand sequences and ranks: O(sequences) memory.
std::vector<int> spread_over(const Cards& cards, const std::vector<int>& targets);

struct MoveCounters {
  int64_t sequences_sent = 0;  // to another rank
  int64_t bytes_sent = 0;
  int64_t messages = 0;
};

class Exchange {
 public:
  explicit Exchange(const comm::CommView& world) : world_(world) {}

  // Collective: the cards of all ranks' sequences.
  Cards cards(const Samples& mine) const;
  // Collective: sequence i of `cards` goes to world rank rank_of[i]; returns this rank's, in id order.
  Samples move(const Samples& mine, const Cards& cards, const std::vector<int>& rank_of);
  // cards() and move() to the ranks `targets`, as spread_over() says.
  Samples spread(const Samples& mine, const std::vector<int>& targets);

  const MoveCounters& counters() const { return counters_; }

 private:
  comm::CommView world_;
  MoveCounters counters_;
};

}  // namespace trireme::driver
