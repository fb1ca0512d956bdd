#pragma once

#include <random>
#include <string>
#include <string_view>

namespace trireme::config {

// `text` with a few bytes changed, removed, inserted or copied; the bytes are those that parsers
// stumble over.
inline std::string damage(std::string text, std::mt19937_64& rng) {
  using std::string_view_literals::operator""sv;
  constexpr std::string_view bytes = "[]{}=.\"'\\\n#,:-0123456789einfax\xff\x00\xc3"sv;
  for (uint64_t changes = 1 + rng() % 4; changes > 0; --changes) {
    const size_t at = rng() % text.size();
    const char byte = bytes[rng() % bytes.size()];
    switch (rng() % 4) {
      case 0: text[at] = byte; break;
      case 1: text.erase(at, 1 + rng() % 20); break;
      case 2: text.insert(at, 1 + rng() % 3, byte); break;
      default: text.insert(at, text.substr(rng() % text.size(), rng() % 40));
    }
    if (text.empty()) text = "x";
  }
  return text;
}

}  // namespace trireme::config
