// Between tensors and buckets: strided runs to consecutive bytes and back.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "trireme/comm/device_copies.hpp"
#include "trireme/weightsync/plan.hpp"

namespace trireme::weightsync {

// How bytes get from and to this rank's tensors: by the processor, or by the copy engines of the
// device where the tensors lie. Buckets are memory of the host. Started copies are done after
// finish().
struct Copier {
  void (*start)(const comm::RowCopy& copy);
  void (*finish)();
};
const Copier& copier_of(bool device);
// To a target's tensors on the host, `bytes` of them: more than a cache holds is written past it,
// so that memory need not be read to be overwritten.
const Copier& copier_to_targets(bool device, int64_t bytes);

enum class Side : uint8_t { source, target };

// A run in its tensor on one side; bytes.
struct TensorRows {
  int64_t rows = 0;
  int64_t bytes = 0;   // of a row
  int64_t offset = 0;  // from the tensor's first byte
  int64_t stride = 0;
};
TensorRows rows_of(const base::CopyRun& run, Side side, int64_t element_bytes);

std::span<const Piece> pieces_of(const Flow& flow, const Bucket& bucket);

// Bytes of one tensor that follow each other.
struct OneRun {
  uint32_t tensor = 0;
  int64_t offset = 0;  // bytes
};
// Where these pieces lie on one side, if they do so one behind the other.
std::optional<OneRun> one_run(std::span<const Piece> pieces, Side side, int64_t element_bytes);

// Started; the caller calls copier.finish().
void start_pack(const Copier& copier, std::span<const Piece> pieces, Side side,
                int64_t element_bytes, std::span<const void* const> tensors, std::byte* out);
void start_unpack(const Copier& copier, std::span<const Piece> pieces, int64_t element_bytes,
                  const std::byte* in, std::span<void* const> targets);
void pack(const Copier& copier, std::span<const Piece> pieces, int64_t element_bytes,
          std::span<const void* const> sources, std::byte* out);
void unpack(const Copier& copier, std::span<const Piece> pieces, int64_t element_bytes,
            const std::byte* in, std::span<void* const> targets);
// From a rank's shard to its own slice, pieces of a tensor that continue each other at once: a
// device's time is that of a copy's start. The caller calls copier.finish(), in the same thread.
void start_local(const Copier& copier, std::span<const Piece> pieces, int64_t element_bytes,
                 std::span<const void* const> sources, std::span<void* const> targets);
// Applies a delta to the host's targets in place; returns the number of elements written.
int64_t unpack_delta(std::span<const Piece> pieces, int64_t element_bytes,
                     std::span<const std::byte> delta, int64_t elements,
                     std::span<void* const> targets);

}  // namespace trireme::weightsync
