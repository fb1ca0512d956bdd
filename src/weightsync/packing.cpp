#include "packing.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include "delta_stream.hpp"

namespace trireme::weightsync {
namespace {

// Finds the place of ascending element numbers of a bucket in the target tensors.
class TargetCursor {
 public:
  TargetCursor(std::span<const Piece> pieces, int64_t element_bytes, std::span<void* const> targets)
      : pieces_(pieces), element_bytes_(element_bytes), targets_(targets) {}

  std::byte* at(int64_t element) {
    while (element - piece_begin_ >= pieces_[piece_].run.elements())
      piece_begin_ += pieces_[piece_++].run.elements();
    const base::CopyRun& run = pieces_[piece_].run;
    const int64_t inside = element - piece_begin_;
    const int64_t offset =
        run.target_offset + inside / run.columns * run.target_stride + inside % run.columns;
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
  for (int64_t r = 0; r < copy.rows; ++r, to += copy.to_stride, from += copy.from_stride)
    std::memcpy(to, from, static_cast<size_t>(copy.bytes));
}

#if defined(__x86_64__)
constexpr int64_t line = 64, page = 4096;
constexpr int lanes =
    4;  // places at a time: several pages are read faster than one after the other

// Whole lines of `rows` rows at once by stores that go around the caches; `to` and its stride are
// multiples of a line. Returns the bytes done of each row.
template <int rows>
int64_t stream_lines(std::byte* to, int64_t to_stride, const std::byte* from, int64_t from_stride,
                     int64_t bytes) {
  constexpr int64_t word = 16;
  int64_t done = 0;
  for (; done + line <= bytes; done += line) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = done; i < done + line; i += word) {
        _mm_stream_si128(
            reinterpret_cast<__m128i*>(to + r * to_stride + i),
            _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + r * from_stride + i)));
      }
    }
  }
  return done;
}

void stream_row(std::byte* to, const std::byte* from, int64_t bytes) {
  const int64_t head = std::min<int64_t>(bytes, -reinterpret_cast<intptr_t>(to) & (line - 1));
  std::memcpy(to, from, static_cast<size_t>(head));
  int64_t done = head;
  for (; done + lanes * page <= bytes; done += lanes * page)
    stream_lines<lanes>(to + done, page, from + done, page, page);
  done += stream_lines<1>(to + done, 0, from + done, 0, bytes - done);
  std::memcpy(to + done, from + done, static_cast<size_t>(bytes - done));
}

void stream_to_host(const comm::RowCopy& copy) {
  int64_t r = 0;
  if (copy.bytes < lanes * page && copy.to_stride % line == 0 &&
      reinterpret_cast<intptr_t>(copy.to) % line == 0) {
    for (; r + lanes <= copy.rows; r += lanes) {
      std::byte* to = copy.to + r * copy.to_stride;
      const std::byte* from = copy.from + r * copy.from_stride;
      const int64_t done =
          stream_lines<lanes>(to, copy.to_stride, from, copy.from_stride, copy.bytes);
      for (int lane = 0; lane < lanes; ++lane) {
        std::memcpy(to + lane * copy.to_stride + done, from + lane * copy.from_stride + done,
                    static_cast<size_t>(copy.bytes - done));
      }
    }
  }
  for (; r < copy.rows; ++r)
    stream_row(copy.to + r * copy.to_stride, copy.from + r * copy.from_stride, copy.bytes);
}
#endif

}  // namespace

const Copier& copier_of(bool device) {
  static constexpr Copier host{copy_on_host, [] {}},
      copy_engines{comm::start_copy, comm::finish_copies};
  return device ? copy_engines : host;
}

const Copier& copier_to_targets([[maybe_unused]] bool device, [[maybe_unused]] int64_t bytes) {
#if defined(__x86_64__)
  constexpr int64_t cached = int64_t{8} << 20;
  static constexpr Copier streaming{stream_to_host, [] { _mm_sfence(); }};
  if (!device && bytes > cached) return streaming;
#endif
  return copier_of(device);
}

TensorRows rows_of(const base::CopyRun& run, Side side, int64_t element_bytes) {
  const bool source = side == Side::source;
  return {run.rows, run.columns * element_bytes,
          (source ? run.source_offset : run.target_offset) * element_bytes,
          (source ? run.source_stride : run.target_stride) * element_bytes};
}

std::optional<OneRun> one_run(std::span<const Piece> pieces, Side side, int64_t element_bytes) {
  std::optional<OneRun> first;
  int64_t end = 0;
  for (const Piece& piece : pieces) {
    const TensorRows rows = rows_of(piece.run, side, element_bytes);
    if (rows.rows > 1 && rows.stride != rows.bytes) return std::nullopt;
    if (first && (piece.tensor != first->tensor || rows.offset != end)) return std::nullopt;
    if (!first) first = OneRun{piece.tensor, rows.offset};
    end = rows.offset + rows.rows * rows.bytes;
  }
  return first;
}

void start_pack(const Copier& copier, std::span<const Piece> pieces, Side side,
                int64_t element_bytes, std::span<const void* const> tensors, std::byte* out) {
  for (const Piece& piece : pieces) {
    const TensorRows rows = rows_of(piece.run, side, element_bytes);
    copier.start({out, static_cast<const std::byte*>(tensors[piece.tensor]) + rows.offset,
                  rows.rows, rows.bytes, rows.bytes, rows.stride});
    out += rows.rows * rows.bytes;
  }
}

void start_unpack(const Copier& copier, std::span<const Piece> pieces, int64_t element_bytes,
                  const std::byte* in, std::span<void* const> targets) {
  for (const Piece& piece : pieces) {
    const TensorRows rows = rows_of(piece.run, Side::target, element_bytes);
    copier.start({static_cast<std::byte*>(targets[piece.tensor]) + rows.offset, in, rows.rows,
                  rows.bytes, rows.stride, rows.bytes});
    in += rows.rows * rows.bytes;
  }
}

void pack(const Copier& copier, std::span<const Piece> pieces, int64_t element_bytes,
          std::span<const void* const> sources, std::byte* out) {
  start_pack(copier, pieces, Side::source, element_bytes, sources, out);
  copier.finish();
}

void unpack(const Copier& copier, std::span<const Piece> pieces, int64_t element_bytes,
            const std::byte* in, std::span<void* const> targets) {
  start_unpack(copier, pieces, element_bytes, in, targets);
  copier.finish();
}

void start_local(const Copier& copier, std::span<const Piece> pieces, int64_t element_bytes,
                 std::span<const void* const> sources, std::span<void* const> targets) {
  comm::RowCopy
      open;  // of tensor `of`: others may lie right behind it, in memory of another allocation
  size_t of = 0;
  const auto start_open = [&] {
    if (open.rows > 0) copier.start(open);
  };
  for (const Piece& piece : pieces) {
    const TensorRows from = rows_of(piece.run, Side::source, element_bytes),
                     to = rows_of(piece.run, Side::target, element_bytes);
    const comm::RowCopy next =
        comm::RowCopy{static_cast<std::byte*>(targets[piece.tensor]) + to.offset,
                      static_cast<const std::byte*>(sources[piece.tensor]) + from.offset,
                      from.rows,
                      from.bytes,
                      to.stride,
                      from.stride}
            .joined();
    if (open.rows > 0 && piece.tensor == of && open.take(next)) continue;
    start_open();
    open = next;
    of = piece.tensor;
  }
  start_open();
}

int64_t unpack_delta(std::span<const Piece> pieces, int64_t element_bytes,
                     std::span<const std::byte> delta, int64_t elements,
                     std::span<void* const> targets) {
  TargetCursor cursor(pieces, element_bytes, targets);
  return for_each_changed(
      delta, static_cast<int>(element_bytes), elements, [&](int64_t index, const std::byte* value) {
        std::memcpy(cursor.at(index), value, static_cast<size_t>(element_bytes));
      });
}

}  // namespace trireme::weightsync
