// Lossless delta of a packed bucket: which elements changed since the last sync, and their new
// values, bit for bit. As streams: rows in, rows out, no packed copy of the bucket on either side.
// At RL learning rates about 1 % of bf16 weights change in a step.
//
// Format (little-endian): blocks of 65,536 elements; each block a u32 count (0: all unchanged;
// 65536 is possible), then count u16 indices inside the block, ascending, then count values of the
// element's size.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "trireme/base/error.hpp"

namespace trireme::weightsync {

inline constexpr int64_t delta_block = 65536;  // elements

class DeltaEncoder {
 public:
  DeltaEncoder(std::span<std::byte> out, int element_bytes);
  // The next `count` elements. False: the encoding has outgrown `out`; it stays so.
  bool add(const std::byte* now, const std::byte* before, int64_t count);
  // The same, where bit `first_bit + i` of `changed` speaks for element i.
  bool add(const std::byte* now, const uint64_t* changed, int64_t first_bit, int64_t count);
  // Bytes written, 0 when they did not fit.
  size_t finish();
  int64_t changed() const { return changed_; }

 private:
  bool flush();
  // Those of [first, first + count) that differ, or whose bit is set; none of them lies in another
  // block.
  template <class Element>
  void compare(const std::byte* now, const std::byte* before, int64_t count);
  template <class Element>
  void pick(const std::byte* now, const uint64_t* changed, int64_t first_bit, int64_t count);
  template <class Element>
  void note(int64_t in_block, const std::byte* value) {
    indices_[noted_] = static_cast<uint16_t>(in_block);
    std::memcpy(values_.data() + noted_ * sizeof(Element), value, sizeof(Element));
    ++noted_;
  }

  std::span<std::byte> out_;
  size_t used_ = 0;
  int element_bytes_;
  int64_t in_block_ = 0;  // elements seen of the block
  int64_t changed_ = 0;
  bool fits_ = true;
  size_t noted_ = 0;  // of the block
  std::vector<uint16_t> indices_;
  std::vector<std::byte> values_;
};

// Calls apply(element index, pointer to the new value) for each changed element, ascending, after
// checking it against `elements`. Throws bad_data on a malformed delta.
template <class F>
int64_t for_each_changed(std::span<const std::byte> delta, int element_bytes, int64_t elements,
                         F&& apply) {
  size_t at = 0;
  int64_t total = 0;
  for (int64_t first = 0; first < elements; first += delta_block) {
    const int64_t size = std::min(delta_block, elements - first);
    uint32_t count = 0;
    VALIDATE(delta.size() - at >= sizeof count, ExitCode::bad_data, "a weight delta ends early");
    std::memcpy(&count, delta.data() + at, sizeof count);
    at += sizeof count;
    const size_t bytes =
        static_cast<size_t>(count) * (sizeof(uint16_t) + static_cast<size_t>(element_bytes));
    VALIDATE(static_cast<int64_t>(count) <= size && bytes <= delta.size() - at, ExitCode::bad_data,
             "a weight delta has a block of ", count, " changes");
    const std::byte* indices = delta.data() + at;
    const std::byte* values = indices + count * sizeof(uint16_t);
    int64_t previous = -1;
    for (uint32_t i = 0; i < count; ++i) {
      uint16_t index = 0;
      std::memcpy(&index, indices + i * sizeof index, sizeof index);
      VALIDATE(index > previous && index < size, ExitCode::bad_data,
               "a weight delta has indices out of order or range");
      previous = index;
      apply(first + index, values + static_cast<size_t>(i) * static_cast<size_t>(element_bytes));
    }
    at += bytes;
    total += count;
  }
  VALIDATE(at == delta.size(), ExitCode::bad_data, "a weight delta has bytes after its end");
  return total;
}

}  // namespace trireme::weightsync
