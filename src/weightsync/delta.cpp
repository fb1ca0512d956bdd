#include "delta_stream.hpp"

namespace trireme::weightsync {
namespace {

constexpr int64_t compared_at_once = 64;  // bytes: unchanged stretches cost one comparison each

}  // namespace

DeltaEncoder::DeltaEncoder(std::span<std::byte> out, int element_bytes) : out_(out), element_bytes_(element_bytes) {
  EXPECT(element_bytes == 2 || element_bytes == 4);
}

bool DeltaEncoder::flush() {
  const auto count = static_cast<uint32_t>(indices_.size());
  const size_t needed = sizeof count + indices_.size() * sizeof(uint16_t) + values_.size();
  fits_ = fits_ && needed <= out_.size() - used_;
  if (fits_) {
    std::byte* to = out_.data() + used_;
    std::memcpy(to, &count, sizeof count);
    if (count > 0) {
      std::memcpy(to + sizeof count, indices_.data(), indices_.size() * sizeof(uint16_t));
      std::memcpy(to + sizeof count + indices_.size() * sizeof(uint16_t), values_.data(), values_.size());
    }
    used_ += needed;
    changed_ += count;
  }
  indices_.clear();
  values_.clear();
  in_block_ = 0;
  return fits_;
}

bool DeltaEncoder::add(const std::byte* now, const std::byte* before, int64_t count) {
  const int64_t group = compared_at_once / element_bytes_;
  while (count > 0 && fits_) {
    const int64_t some = std::min({group, count, delta_block - in_block_});
    const size_t bytes = static_cast<size_t>(some * element_bytes_);
    if (std::memcmp(now, before, bytes) == 0) {
      in_block_ += some;
    } else {
      for (int64_t i = 0; i < some; ++i, ++in_block_) {
        const size_t at = static_cast<size_t>(i * element_bytes_);
        if (std::memcmp(now + at, before + at, static_cast<size_t>(element_bytes_)) != 0) note(now + at);
      }
    }
    now += bytes;
    before += bytes;
    count -= some;
    if (in_block_ == delta_block) flush();
  }
  return fits_;
}

bool DeltaEncoder::add(const std::byte* now, const uint64_t* changed, int64_t first_bit, int64_t count) {
  for (int64_t i = 0; i < count && fits_; ++i, ++in_block_) {
    if (in_block_ == delta_block) flush();
    const auto bit = static_cast<uint64_t>(first_bit + i);
    const uint64_t word = changed[bit / 64];
    if ((word >> (bit % 64)) & 1) note(now + i * element_bytes_);
  }
  if (in_block_ == delta_block) flush();
  return fits_;
}

size_t DeltaEncoder::finish() {
  if (in_block_ > 0) flush();
  return fits_ ? used_ : 0;
}

}  // namespace trireme::weightsync
