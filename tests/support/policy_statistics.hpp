// What a policy loss has added up, as its statistics.
#pragma once

#include "torch/torch.hpp"

#include <algorithm>

#include "trireme/ppo/losses.hpp"

namespace trireme::test {

inline ppo::PolicyStatistics statistics_of(const ppo::PolicyLoss& loss) {
  ppo::PolicyStatistics out;
  std::copy_n(loss.sums.const_data_ptr<double>(), out.sums.size(), out.sums.begin());
  return out;
}

}  // namespace trireme::test
