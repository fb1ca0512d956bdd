// The normalisers of `tokenizer.json`: they change a text before it is split into words.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "text/character_map.hpp"
#include "text/regex.hpp"
#include "trireme/text/json_text.hpp"

namespace trireme::text {

class Normalizer {
 public:
  Normalizer() = default;
  // Reads the `normalizer` object: NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, Prepend, Replace,
  // Strip, Precompiled and Sequence. Throws UserError(bad_data) with `where` and the name of
  // another type.
  Normalizer(const Json& json, const std::string& where);

  // `starts` becomes false where characters at the start of the text are taken away.
  std::string run(std::string_view text, bool& starts) const;

 private:
  enum class Unicode { nfc, nfd, nfkc, nfkd, lowercase, strip_accents };
  struct Prepend {
    std::string text;
  };
  struct Replace {
    Regex pattern;
    std::string by;
  };
  struct Strip {
    bool left, right;
  };
  using Step = std::variant<Unicode, Prepend, Replace, Strip, CharacterMap>;
  void read(const Json& json, const std::string& where);
  static std::string run(const Step& step, std::string text, bool& starts);
  static std::string change(Unicode form, std::string text);

  std::vector<Step> steps_;
};

// `pattern` of a Replace or Split: {"String": text} or {"Regex": expression}.
Regex read_pattern(const Json& json, const std::string& name, const std::string& where);
// Every match by another text.
std::string replace_matches(std::string_view text, const Regex& pattern, std::string_view by);

}  // namespace trireme::text
