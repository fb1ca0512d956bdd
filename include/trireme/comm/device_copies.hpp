// Copies between the memory of this rank's current device and that of the host, or within either,
// by the device's copy engines. In programs that do not run GPUs (enable_device_exchange()) there
// are none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace trireme::comm {

// Rows of `bytes` bytes each; strides in bytes, at least `bytes`.
struct RowCopy {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  int64_t rows = 0;
  int64_t bytes = 0;
  int64_t to_stride = 0;
  int64_t from_stride = 0;

  // Where both sides are without gaps it is one row.
  RowCopy joined() const;
  // Takes what continues it on both sides too; false: the other one does not.
  bool take(const RowCopy& next);
};

// After all work on the device's default stream so far, and before all later work there. The host's
// side may be used again, or read, after finish_copies() only.
void start_copy(const RowCopy& copy);
void finish_copies();

// Copies to the device and from it at the same time, beside what is computed in the default stream,
// by way of two halves of the device's memory that take turns: while one's values go back, the
// other's next ones come. The host's memory must be page-locked. In programs that do not run GPUs,
// where both lie on the host, plain copies.
class TwoWayCopies {
 public:
  enum class Half : uint8_t { first, second };
  struct Copy {
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    int64_t bytes = 0;
  };
  virtual ~TwoWayCopies() = default;  // waits for all copies
  // Into a half, as soon as what it had has gone back. What is computed from now on waits for them.
  virtual void to_device(Half half, std::span<const Copy> copies) = 0;
  // Out of a half, after what was computed so far.
  virtual void to_host(Half half, std::span<const Copy> copies) = 0;
  virtual void finish() = 0;  // the host waits for all copies
};
// The halves may be written after what is in the default stream by now.
std::unique_ptr<TwoWayCopies> make_two_way_copies();

// Rows in the device's memory; bytes, each row of whole words.
struct DeviceRows {
  const std::byte* from = nullptr;
  int64_t rows = 0;
  int64_t bytes = 0;
  int64_t stride = 0;
  int64_t first = 0;  // number of the first word
};
inline constexpr int64_t summed_word = 2;  // bytes

// Of each of them a sum of its words as integers, modulo 2^64, in which a word counts (2 n + 1)
// times, n its number, those of a row behind those of the row before: sums of the parts of
// something add up to that of the whole, and words that changed places change it. After all work
// on the device's default stream so far; waits for it.
std::vector<uint64_t> sum_rows(std::span<const DeviceRows> rows);

}  // namespace trireme::comm
