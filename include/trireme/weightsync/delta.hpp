// Lossless delta of a packed bucket: which elements changed since the last sync, and their new values, bit for bit.
// At RL learning rates about 1 % of bf16 weights change in a step.
//
// Format (little-endian): blocks of 65,536 elements; each block a u32 count (0: all unchanged; 65536 is possible), then
// count u16 indices inside the block, ascending, then count values of the element's size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace trireme::weightsync {

inline constexpr int64_t delta_block = 65536;  // elements

// Encodes `now` against `before` (same size, elements of 2 or 4 bytes) into `out`. Returns the bytes written, or 0 when the
// encoding would take more than out.size(): send the full bucket then.
size_t encode_delta(std::span<const std::byte> now, std::span<const std::byte> before, int element_bytes,
                    std::span<std::byte> out);

// The same from a bitmap: bit i (least significant first) of `changed` says whether element i may differ.
size_t encode_delta(std::span<const std::byte> now, std::span<const uint64_t> changed, int element_bytes,
                    std::span<std::byte> out);

// Applies a delta to `values`, which hold the elements before. Returns how many elements it wrote. Throws bad_data on a
// malformed delta, before writing outside `values`.
int64_t decode_delta(std::span<const std::byte> delta, int element_bytes, std::span<std::byte> values);

}  // namespace trireme::weightsync
