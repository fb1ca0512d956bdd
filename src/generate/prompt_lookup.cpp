#include "prompt_lookup.hpp"

#include <algorithm>
#include <cstddef>

namespace trireme::generate {
namespace {

// Longer ones first: they are right more often.
constexpr size_t lengths_looked_for[] = {3, 2};

}  // namespace

std::vector<int32_t> look_up_continuation(std::span<const int32_t> tokens, int64_t count) {
  std::vector<int32_t> out;
  if (count <= 0) return out;
  for (const size_t length : lengths_looked_for) {
    if (tokens.size() <= length) continue;
    const auto last = tokens.last(length), before = tokens.first(tokens.size() - 1);
    const auto found = std::search(before.rbegin(), before.rend(), last.rbegin(), last.rend());
    if (found == before.rend()) continue;
    const auto next = static_cast<size_t>(before.rend() - found);
    for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
      const size_t at = next + i;
      out.push_back(at < tokens.size() ? tokens[at] : out[at - tokens.size()]);
    }
    return out;
  }
  return out;
}

}  // namespace trireme::generate
