// Copies between the memory of this rank's current device and that of the host, or within either,
// by the device's copy engines. In programs that do not run GPUs (enable_device_exchange()) there
// are none.
#pragma once

#include <cstddef>
#include <cstdint>
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
