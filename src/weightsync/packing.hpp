// Between tensors and buckets: strided runs to consecutive bytes and back.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "trireme/weightsync/plan.hpp"

namespace trireme::weightsync {

std::span<const Piece> pieces_of(const Flow& flow, const Bucket& bucket);

void pack(std::span<const Piece> pieces, int64_t element_bytes, std::span<const void* const> sources, std::byte* out);
void unpack(std::span<const Piece> pieces, int64_t element_bytes, const std::byte* in, std::span<void* const> targets);
// From a rank's shard to its own slice.
void copy_local(std::span<const Piece> pieces, int64_t element_bytes, std::span<const void* const> sources, std::span<void* const> targets);
// Applies a delta to the targets in place; returns the number of elements written.
int64_t unpack_delta(std::span<const Piece> pieces, int64_t element_bytes, std::span<const std::byte> delta, int64_t elements,
                     std::span<void* const> targets);

}  // namespace trireme::weightsync
