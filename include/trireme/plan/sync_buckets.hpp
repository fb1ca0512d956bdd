// Sizes of the buffers through which weight sync moves weights: weightsync makes them, the ledger
// counts them.
#pragma once

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

}  // namespace trireme::plan
