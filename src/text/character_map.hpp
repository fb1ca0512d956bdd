// SentencePiece's table of characters and what they become (`precompiled_charsmap`), as HF's
// `spm_precompiled` applies it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::text {

class CharacterMap {
 public:
  // `base64`: a 32-bit size, a trie of so many bytes, texts that end with a zero. Throws
  // UserError(bad_data) with `where` when it is not that.
  CharacterMap(std::string_view base64, const std::string& where);

  std::string run(std::string_view text) const;

 private:
  // Replacement of the shortest beginning of `part` in the table.
  std::optional<std::string_view> find(std::string_view part) const;
  void append(std::string_view cluster, std::string& out) const;

  std::vector<uint32_t> trie_;
  std::string texts_;
};

}  // namespace trireme::text
