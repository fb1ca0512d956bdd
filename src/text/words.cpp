#include "text/words.hpp"

namespace trireme::text {

namespace {

constexpr size_t longest_cached_word = 64;
constexpr size_t largest_cache = 65536;

}  // namespace

bool WordScratch::recall(std::string_view word, std::vector<TokenId>& out) const {
  const auto found = cache.find(word);
  if (found == cache.end()) return false;
  const auto first = cached_ids.begin() + found->second.first;
  out.insert(out.end(), first, first + found->second.second);
  return true;
}

void WordScratch::keep(std::string_view word, const std::vector<TokenId>& out, size_t start) {
  if (word.size() > longest_cached_word || cache.size() >= largest_cache) return;
  cache.emplace(word, std::pair(static_cast<uint32_t>(cached_ids.size()),
                                static_cast<uint32_t>(out.size() - start)));
  cached_ids.insert(cached_ids.end(), out.begin() + static_cast<int64_t>(start), out.end());
}

}  // namespace trireme::text
