#include <bit>

#include "delta_stream.hpp"

namespace trireme::weightsync {
namespace {

constexpr int64_t compared_at_once = 64;  // bytes: unchanged stretches cost one comparison each

uint64_t load_word(const std::byte* from) {
  uint64_t word = 0;
  std::memcpy(&word, from, sizeof word);
  return word;
}

}  // namespace

DeltaEncoder::DeltaEncoder(std::span<std::byte> out, int element_bytes)
    : out_(out),
      element_bytes_(element_bytes),
      indices_(static_cast<size_t>(delta_block)),
      values_(static_cast<size_t>(delta_block * element_bytes)) {
  EXPECT(element_bytes == 2 || element_bytes == 4);
}

bool DeltaEncoder::flush() {
  const auto count = static_cast<uint32_t>(noted_);
  const size_t index_bytes = noted_ * sizeof(uint16_t),
               value_bytes = noted_ * static_cast<size_t>(element_bytes_);
  const size_t needed = sizeof count + index_bytes + value_bytes;
  fits_ = fits_ && needed <= out_.size() - used_;
  if (fits_) {
    std::byte* to = out_.data() + used_;
    std::memcpy(to, &count, sizeof count);
    std::memcpy(to + sizeof count, indices_.data(), index_bytes);
    std::memcpy(to + sizeof count + index_bytes, values_.data(), value_bytes);
    used_ += needed;
    changed_ += count;
  }
  noted_ = 0;
  in_block_ = 0;
  return fits_;
}

template <class Element>
void DeltaEncoder::compare(const std::byte* now, const std::byte* before, int64_t count) {
  constexpr int64_t size = sizeof(Element), group = compared_at_once / size, per_word = 8 / size;
  int64_t i = 0;
  for (; i + group <= count; i += group) {
    if (std::memcmp(now + i * size, before + i * size, compared_at_once) == 0) continue;
    for (int64_t first = i; first < i + group; first += per_word) {
      uint64_t difference = load_word(now + first * size) ^ load_word(before + first * size);
      for (int64_t j = first; difference != 0; ++j, difference >>= 8 * size) {
        if (static_cast<Element>(difference) != 0) note<Element>(in_block_ + j, now + j * size);
      }
    }
  }
  for (; i < count; ++i) {
    if (std::memcmp(now + i * size, before + i * size, size) != 0)
      note<Element>(in_block_ + i, now + i * size);
  }
}

template <class Element>
void DeltaEncoder::pick(const std::byte* now, const uint64_t* changed, int64_t first_bit,
                        int64_t count) {
  for (int64_t i = 0; i < count;) {
    const int64_t bit = first_bit + i, in_word = bit % 64, some = std::min(64 - in_word, count - i);
    uint64_t ones = changed[bit / 64] >> in_word;
    if (some < 64) ones &= (uint64_t{1} << some) - 1;
    for (; ones != 0; ones &= ones - 1) {
      const int64_t at = i + std::countr_zero(ones);
      note<Element>(in_block_ + at, now + at * static_cast<int64_t>(sizeof(Element)));
    }
    i += some;
  }
}

bool DeltaEncoder::add(const std::byte* now, const std::byte* before, int64_t count) {
  for (int64_t done = 0; done < count && fits_;) {
    const int64_t some = std::min(count - done, delta_block - in_block_),
                  at = done * element_bytes_;
    element_bytes_ == 2 ? compare<uint16_t>(now + at, before + at, some)
                        : compare<uint32_t>(now + at, before + at, some);
    in_block_ += some;
    done += some;
    if (in_block_ == delta_block) flush();
  }
  return fits_;
}

bool DeltaEncoder::add(const std::byte* now, const uint64_t* changed, int64_t first_bit,
                       int64_t count) {
  for (int64_t done = 0; done < count && fits_;) {
    const int64_t some = std::min(count - done, delta_block - in_block_),
                  at = done * element_bytes_;
    element_bytes_ == 2 ? pick<uint16_t>(now + at, changed, first_bit + done, some)
                        : pick<uint32_t>(now + at, changed, first_bit + done, some);
    in_block_ += some;
    done += some;
    if (in_block_ == delta_block) flush();
  }
  return fits_;
}

size_t DeltaEncoder::finish() {
  if (in_block_ > 0) flush();
  return fits_ ? used_ : 0;
}

}  // namespace trireme::weightsync
