// A hash of 64 bits that is the same on every machine and in every version: for what is stored or
// compared between processes, where nobody attacks it.
#pragma once

#include <cstdint>
#include <string_view>

namespace trireme::base {

inline constexpr uint64_t fnv_basis = 0xCBF29CE484222325ull;
constexpr uint64_t fnv_step(uint64_t hash, uint64_t value) {
  return (hash ^ value) * 0x100000001B3ull;
}

// FNV-1a; `hash` goes on behind an earlier piece.
constexpr uint64_t fnv1a(std::string_view bytes, uint64_t hash = fnv_basis) {
  for (const char byte : bytes) hash = fnv_step(hash, static_cast<unsigned char>(byte));
  return hash;
}

}  // namespace trireme::base
