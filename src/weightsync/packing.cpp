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

namespace {

void copy_on_host(const comm::RowCopy& copy) {
  std::byte* to = copy.to;
  const std::byte* from = copy.from;
  for (int64_t r = 0; r < copy.rows; ++r, to += copy.to_stride, from += copy.from_stride) std::memcpy(to, from, static_cast<size_t>(copy.bytes));
}

}  // namespace

const Copier& copier_of(bool device) {
  static constexpr Copier host{copy_on_host, [] {}}, copy_engines{comm::start_copy, comm::finish_copies};
  return device ? copy_engines : host;
}

TensorRows rows_of(const base::CopyRun& run, Side side, int64_t element_bytes) {
  const bool source = side == Side::source;
  return {run.rows, run.columns * element_bytes, (source ? run.source_offset : run.target_offset) * element_bytes,
          (source ? run.source_stride : run.target_stride) * element_bytes};
}

void pack(const Copier& copier, std::span<const Piece> pieces, Side side, int64_t element_bytes, std::span<const void* const> tensors, std::byte* out) {
  for (const Piece& piece : pieces) {
    const TensorRows rows = rows_of(piece.run, side, element_bytes);
    copier.start({out, static_cast<const std::byte*>(tensors[piece.tensor]) + rows.offset, rows.rows, rows.bytes, rows.bytes, rows.stride});
    out += rows.rows * rows.bytes;
  }
  copier.finish();
}

void unpack(const Copier& copier, std::span<const Piece> pieces, int64_t element_bytes, const std::byte* in, std::span<void* const> targets) {
  for (const Piece& piece : pieces) {
    const TensorRows rows = rows_of(piece.run, Side::target, element_bytes);
    copier.start({static_cast<std::byte*>(targets[piece.tensor]) + rows.offset, in, rows.rows, rows.bytes, rows.stride, rows.bytes});
    in += rows.rows * rows.bytes;
  }
  copier.finish();
}

void copy_local(const Copier& copier, std::span<const Piece> pieces, int64_t element_bytes, std::span<const void* const> sources,
                std::span<void* const> targets) {
  for (const Piece& piece : pieces) {
    const TensorRows from = rows_of(piece.run, Side::source, element_bytes), to = rows_of(piece.run, Side::target, element_bytes);
    copier.start({static_cast<std::byte*>(targets[piece.tensor]) + to.offset, static_cast<const std::byte*>(sources[piece.tensor]) + from.offset,
                  from.rows, from.bytes, to.stride, from.stride});
  }
  copier.finish();
}

int64_t unpack_delta(std::span<const Piece> pieces, int64_t element_bytes, std::span<const std::byte> delta, int64_t elements,
                     std::span<void* const> targets) {
  TargetCursor cursor(pieces, element_bytes, targets);
  return for_each_changed(delta, static_cast<int>(element_bytes), elements, [&](int64_t index, const std::byte* value) {
    std::memcpy(cursor.at(index), value, static_cast<size_t>(element_bytes));
  });
}

int64_t apply_delta(std::span<const std::byte> delta, int64_t element_bytes, int64_t elements, std::byte* packed) {
  return for_each_changed(delta, static_cast<int>(element_bytes), elements, [&](int64_t index, const std::byte* value) {
    std::memcpy(packed + index * element_bytes, value, static_cast<size_t>(element_bytes));
  });
}

}  // namespace trireme::weightsync
