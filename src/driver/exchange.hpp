// Moves samples between roles: packed, never padded, the same way whether the roles share ranks or not.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
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

// A scored rollout as the trainers have it.
struct Rollout {
  Samples samples;         // this rank's, in id order
  Cards cards;             // of all sequences
  std::vector<int> owner;  // trainer of each of them
};

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
  // Collective: every sequence to the trainer that `owners` names, an index into the world ranks `trainers`.
  Rollout to_trainers(const Samples& mine, const std::vector<int>& trainers, const std::function<std::vector<int>(const Cards&)>& owners);
  // cards() and move() to the ranks `targets`, as spread_over() says.
  Samples spread(const Samples& mine, const std::vector<int>& targets);

  const MoveCounters& counters() const { return counters_; }

 private:
  comm::CommView world_;
  MoveCounters counters_;
};

// A rank's part of a waiting rollout as a checkpoint stores it, empty where it has none; the parts of all ranks, one behind the other.
// Throws UserError(bad_data) where they are cut short.
std::string to_stored(const Samples& samples);
Samples from_stored(std::string_view parts);

}  // namespace trireme::driver
