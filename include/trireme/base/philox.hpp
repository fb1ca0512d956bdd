// Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3" (SC'11). A draw is a pure function of (key, counter): texts and shuffles do not depend
// on rank counts, batch layout or restarts.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace trireme::base {

using PhiloxCounter = std::array<uint32_t, 4>;
using PhiloxKey = std::array<uint32_t, 2>;

constexpr PhiloxCounter philox(PhiloxCounter counter, PhiloxKey key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key = {key[0] + 0x9E3779B9u, key[1] + 0xBB67AE85u};
  }
  return counter;
}

// Uniform in [0, 1) with 24 bits, exactly representable in float.
constexpr float unit_float(uint32_t bits) { return static_cast<float>(bits >> 8) * 0x1.0p-24f; }

// Purpose of a stream of draws; keeps streams of one seed apart.
enum class Stream : uint32_t {
  sampling = 1,
  shuffle = 2,
  init = 3,
  test = 4,
  environment = 5,
  judge = 6
};

// One uniform in [0, 1) for (seed, stream, a, b): e.g. a = request id, b = position.
float uniform(uint64_t seed, Stream stream, uint64_t a, uint32_t b);

// A permutation of 0..n-1 that depends only on (seed, epoch).
std::vector<int64_t> permutation(uint64_t seed, uint64_t epoch, int64_t n);

// n standard normals, element i of stream (seed, a) at index first + i: slices of a tensor are
// drawn alike on any rank.
void normals(uint64_t seed, uint64_t a, uint64_t first, std::span<float> out);

}  // namespace trireme::base
