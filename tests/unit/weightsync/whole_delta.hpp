// Deltas of whole buffers by the streams that the sync uses.
#pragma once

#include <cstring>
#include <span>

#include "weightsync/delta_stream.hpp"

namespace trireme::weightsync {

inline size_t encode_delta(std::span<const std::byte> now, std::span<const std::byte> before,
                           int element_bytes, std::span<std::byte> out) {
  DeltaEncoder encoder(out, element_bytes);
  encoder.add(now.data(), before.data(), static_cast<int64_t>(now.size()) / element_bytes);
  return encoder.finish();
}

inline size_t encode_delta(std::span<const std::byte> now, std::span<const uint64_t> changed,
                           int element_bytes, std::span<std::byte> out) {
  DeltaEncoder encoder(out, element_bytes);
  encoder.add(now.data(), changed.data(), 0, static_cast<int64_t>(now.size()) / element_bytes);
  return encoder.finish();
}

inline int64_t decode_delta(std::span<const std::byte> delta, int element_bytes,
                            std::span<std::byte> values) {
  const int64_t elements = static_cast<int64_t>(values.size()) / element_bytes;
  return for_each_changed(delta, element_bytes, elements,
                          [&](int64_t index, const std::byte* value) {
                            std::memcpy(values.data() + index * element_bytes, value,
                                        static_cast<size_t>(element_bytes));
                          });
}

}  // namespace trireme::weightsync
