// Digests of what a run or a tool reads.
#pragma once

#include <array>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include "trireme/base/hash.hpp"

namespace trireme::learn {

// Of texts, which are kept apart: "ab", "c" is not "a", "bc".
class Fingerprint {
 public:
  void add(std::string_view bytes) {
    value_ = base::fnv_step(base::fnv1a(bytes, value_), bytes.size());
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = base::fnv_basis;
};

inline std::string digest_text(uint64_t value) {
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(value));
  return text.data();
}

}  // namespace trireme::learn
