// The batches whose sequences a checkpoint has.
#pragma once

#include <cstdint>
#include <functional>
#include <tuple>
#include <vector>

#include "trireme/base/samples.hpp"
#include "trireme/rollout/dispatch.hpp"

namespace trireme::rollout {

struct StoredBatch {
  uint64_t first = 0;  // the group that it begins with
  int64_t sequences = 0;
  int64_t n = 1;  // samples of a prompt
  Samples unfinished;
  std::vector<uint64_t> groups;  // ascending
  static constexpr auto fields =
      std::tuple{&StoredBatch::first, &StoredBatch::sequences, &StoredBatch::n,
                 &StoredBatch::unfinished, &StoredBatch::groups};

  int64_t iteration() const { return iteration_of(first << 20); }
};

// In the order of their first groups. `first_of`: of a sequence's id, the group that its batch
// begins with.
std::vector<StoredBatch> stored_batches(const Samples& stored,
                                        const std::function<uint64_t(uint64_t id)>& first_of);

// Remaining work of unfinished sequences, by group in ascending order.
struct UnfinishedGroups {
  std::vector<PromptTask> tasks;
  std::vector<std::vector<int64_t>> sequences;  // of each
};
UnfinishedGroups unfinished_groups(const Samples& unfinished);

}  // namespace trireme::rollout
