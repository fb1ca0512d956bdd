// Digests: XXH3-128 against bit rot (memory speed), SHA-256 for the manifest.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace trireme::checkpoint {

using Digest = std::array<uint64_t, 2>;

Digest xxh3(std::span<const std::byte> bytes);

// Digest of bytes that come in parts.
class DigestStream {
 public:
  DigestStream();
  ~DigestStream();
  void add(std::span<const std::byte> bytes);
  Digest value() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string to_hex(const Digest& digest);
std::string sha256_hex(std::string_view text);

}  // namespace trireme::checkpoint
