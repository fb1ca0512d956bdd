#include "torch/torch.hpp"

#include "trireme/zero/replica_check.hpp"

#include <bit>
#include <cstdint>
#include <vector>

#include "trireme/base/error.hpp"
#include "trireme/trace/guards.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::zero {
namespace {

// Multiplies and adds words in four lanes, as fast as memory gives them: it is compared between copies of one array, nobody attacks it.
uint64_t digest_of(const float* values, int64_t count) {
  constexpr uint64_t prime = 0x9e3779b97f4a7c15ULL;
  uint64_t lanes[4] = {1, 2, 3, 4};
  for (int64_t i = 0; i < count; ++i) {
    uint64_t& lane = lanes[i & 3];
    lane = (lane ^ std::bit_cast<uint32_t>(values[i])) * prime;
  }
  return ((lanes[0] * prime ^ lanes[1]) * prime ^ lanes[2]) * prime ^ lanes[3];
}

}  // namespace

void require_equal_replicas(const comm::CommView& replicas, int world_rank, const std::string& name, ShardedModel& model) {
  const trace::Region region{"compare replicas"};
  const trace::Guarding guard{trace::Guard::replicas};
  const auto& parameters = model.spec().parameters;
  std::vector<uint64_t> mine;
  for (size_t p = 0; p < parameters.size(); ++p) {
    const int64_t count = model.own(p).elements();
    for (const float* array : {model.master(p), model.moment1(p), model.moment2(p)}) mine.push_back(digest_of(array, count));
  }
  const auto all = replicas.gather_ragged<uint64_t>(mine);
  const std::vector<int> ranks = replicas.gather_values(world_rank);
  for (size_t i = 0; i < mine.size(); ++i) {
    for (size_t other = 1; other < all.size(); ++other) {
      VALIDATE(all[other][i] == all[0][i], ExitCode::internal, "replicas differ: ", parameters[i / 3].spec.name, " of the ", name, " (",
               i % 3 == 0 ? "weights" : i % 3 == 1 ? "first moment" : "second moment", ") on rank ", ranks[other], " is not that of rank ", ranks[0],
               ": a processor or memory of one of them computes wrong. Go on from the last checkpoint without those nodes");
    }
  }
}

}  // namespace trireme::zero
