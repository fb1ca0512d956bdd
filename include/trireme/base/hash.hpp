// A hash of 64 bits that is the same on every machine and in every version: for what is stored or compared between processes, where nobody attacks it.
#pragma once

#include <cstdint>
#include <string_view>

namespace trireme::base {

// FNV-1a; `hash` goes on behind an earlier piece.
constexpr uint64_t fnv1a(std::string_view bytes, uint64_t hash = 0xCBF29CE484222325ull) {
  for (const char byte : bytes) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001B3ull;
  return hash;
}

}  // namespace trireme::base
