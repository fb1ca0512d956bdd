#include "packing.hpp"

#include <cstring>

#include "delta_stream.hpp"

namespace trireme::weightsync {
namespace {

// Finds the place of ascending element numbers of a bucket in the target tensors.
class TargetCursor {
 public:
  TargetCursor(std::span<const Piece> pieces, int64_t element_bytes, std::span<void* const> targets)
      : pieces_(pieces), element_bytes_(element_bytes), targets_(targets) {}

  std::byte* at(int64_t element) {
    while (element - piece_begin_ >= pieces_[piece_].run.elements()) piece_begin_ += pieces_[piece_++].run.elements();
    const base::CopyRun& run = pieces_[piece_].run;
    const int64_t inside = element - piece_begin_;
    const int64_t offset = run.target_offset + inside / run.columns * run.target_stride + inside % run.columns;
    return static_cast<std::byte*>(targets_[pieces_[piece_].tensor]) + offset * element_bytes_;
  }

 private:
  std::span<const Piece> pieces_;
  int64_t element_bytes_;
  std::span<void* const> targets_;
  size_t piece_ = 0;
  int64_t piece_begin_ = 0;
};

}  // namespace

std::span<const Piece> pieces_of(const Flow& flow, const Bucket& bucket) {
  return std::span(flow.pieces).subspan(bucket.first, bucket.last - bucket.first);
}

void pack(std::span<const Piece> pieces, int64_t element_bytes, std::span<const void* const> sources, std::byte* out) {
  for (const Piece& piece : pieces) {
    const base::CopyRun& run = piece.run;
    const auto* from = static_cast<const std::byte*>(sources[piece.tensor]) + run.source_offset * element_bytes;
    const auto bytes = static_cast<size_t>(run.columns * element_bytes);
    for (int64_t r = 0; r < run.rows; ++r, out += bytes, from += run.source_stride * element_bytes) std::memcpy(out, from, bytes);
  }
}

void unpack(std::span<const Piece> pieces, int64_t element_bytes, const std::byte* in, std::span<void* const> targets) {
  for (const Piece& piece : pieces) {
    const base::CopyRun& run = piece.run;
    auto* to = static_cast<std::byte*>(targets[piece.tensor]) + run.target_offset * element_bytes;
    const auto bytes = static_cast<size_t>(run.columns * element_bytes);
    for (int64_t r = 0; r < run.rows; ++r, in += bytes, to += run.target_stride * element_bytes) std::memcpy(to, in, bytes);
  }
}

void copy_local(std::span<const Piece> pieces, int64_t element_bytes, std::span<const void* const> sources, std::span<void* const> targets) {
  for (const Piece& piece : pieces) {
    const base::CopyRun& run = piece.run;
    const auto* from = static_cast<const std::byte*>(sources[piece.tensor]) + run.source_offset * element_bytes;
    auto* to = static_cast<std::byte*>(targets[piece.tensor]) + run.target_offset * element_bytes;
    const auto bytes = static_cast<size_t>(run.columns * element_bytes);
    for (int64_t r = 0; r < run.rows; ++r, from += run.source_stride * element_bytes, to += run.target_stride * element_bytes) {
      std::memcpy(to, from, bytes);
    }
  }
}

int64_t unpack_delta(std::span<const Piece> pieces, int64_t element_bytes, std::span<const std::byte> delta, int64_t elements,
                     std::span<void* const> targets) {
  TargetCursor cursor(pieces, element_bytes, targets);
  return for_each_changed(delta, static_cast<int>(element_bytes), elements, [&](int64_t index, const std::byte* value) {
    std::memcpy(cursor.at(index), value, static_cast<size_t>(element_bytes));
  });
}

}  // namespace trireme::weightsync
