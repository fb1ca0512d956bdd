// The rewards of a whole rollout, which estimators compare, on every trainer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "trireme/base/samples.hpp"
#include "trireme/learn/exchange.hpp"
#include "trireme/ppo/packed.hpp"
#include "trireme/ppo/rewards.hpp"

namespace trireme::learn {

struct RewardRows {
  ppo::RewardTable table;     // of all sequences, in id order
  std::vector<int64_t> mine;  // which of them are this rank's
};
// `parts`: reward sources whose numbers go into the table; 0: the reward alone. Collective through
// `sum`. O(sequences) memory.
RewardRows gather_rewards(const Samples& mine, const SequenceList& sequences, size_t parts,
                          const ppo::Sum& sum);

}  // namespace trireme::learn
