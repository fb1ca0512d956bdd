// Sizes of the buffers through which weight sync moves weights: weightsync makes them, the ledger
// counts them.
#pragma once

#include <algorithm>
#include <cstdint>

namespace trireme::plan {

inline constexpr int64_t node_bucket =
    int64_t{3}
    << 18;  // bytes of a bucket inside a node: the copy stays in a second-level cache of 1 MiB
// A replica passes a bucket on only when it has all of it, so small ones pipeline better
// (docs/design/0008).
inline constexpr int64_t passed_bucket = int64_t{256} << 10;   // bytes
inline constexpr int64_t smallest_bucket = int64_t{64} << 10;  // bytes
inline constexpr int64_t node_staging = int64_t{64}
                                        << 20;  // bytes of rings that a rank gives to its node
inline constexpr int64_t message_staging =
    int64_t{256} << 20;  // bytes of message buffers for what is sent, and for what comes
inline constexpr int64_t bucket_header = 64;  // bytes before a bucket
inline constexpr int buckets_in_flight = 2;   // of a flow
inline constexpr int64_t device_staging =
    int64_t{256} << 20;  // bytes on a GPU of what is packed for messages from GPU to GPU

// Of a sync from GPU to GPU, all flows of which are under way at a time: `flows` at most at a rank
// of the one with most of them.
constexpr int64_t device_bucket(int64_t bucket_bytes, int64_t flows) {
  return std::min(bucket_bytes,
                  std::max(smallest_bucket, device_staging / (buckets_in_flight * flows)));
}
// Where a slice comes to a rank by as many others that pass on what they got first.
constexpr int64_t device_flows(int64_t shards, int64_t slices, int64_t replicas,
                               int64_t generators_on_node, bool relay) {
  const int64_t homes = relay ? replicas : (generators_on_node + slices - 1) / slices;
  return std::max(shards * homes, slices * replicas);
}

}  // namespace trireme::plan
