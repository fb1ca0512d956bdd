#include "trireme/weightsync/delta.hpp"

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

size_t encode_delta(std::span<const std::byte> now, std::span<const std::byte> before, int element_bytes, std::span<std::byte> out) {
  EXPECT(now.size() == before.size());
  DeltaEncoder encoder(out, element_bytes);
  encoder.add(now.data(), before.data(), static_cast<int64_t>(now.size()) / element_bytes);
  return encoder.finish();
}

size_t encode_delta(std::span<const std::byte> now, std::span<const uint64_t> changed, int element_bytes, std::span<std::byte> out) {
  DeltaEncoder encoder(out, element_bytes);
  encoder.add(now.data(), changed.data(), 0, static_cast<int64_t>(now.size()) / element_bytes);
  return encoder.finish();
}

int64_t decode_delta(std::span<const std::byte> delta, int element_bytes, std::span<std::byte> values) {
  const int64_t elements = static_cast<int64_t>(values.size()) / element_bytes;
  return for_each_changed(delta, element_bytes, elements, [&](int64_t index, const std::byte* value) {
    std::memcpy(values.data() + index * element_bytes, value, static_cast<size_t>(element_bytes));
  });
}

}  // namespace trireme::weightsync
