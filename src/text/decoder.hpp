// How tokens become text again: the `decoder` of tokenizer.json, one token after the other.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/regex.hpp"
#include "trireme/text/json_text.hpp"
#include "trireme/text/tokenizer.hpp"

namespace trireme::text {

class Decoder {
 public:
  // Reads ByteLevel (and Fuse), or Replace and Metaspace, then ByteFallback, Fuse and Strip at the
  // start. Throws UserError(bad_data) with `where` and the name of what is not known.
  Decoder(const Json& json, const std::string& where);

  // Tokens are in the byte-level alphabet.
  bool byte_level() const { return byte_level_; }

  // Appends to `out` the text that is certain with the next token; `bytes` are the token's in the
  // byte-level alphabet.
  void push(std::string_view token, std::string_view bytes, DecodeState& state,
            std::string& out) const;
  // Returns the rest and resets the state.
  void finish(DecodeState& state, std::string& out) const;

 private:
  struct Step {
    std::optional<Regex> pattern;  // Replace; without: Metaspace
    std::string text;              // what it becomes, or the character that stands for a space
    bool drops_first = false;      // Metaspace: those of the first token are dropped
  };
  void read(const Json& json, const std::string& where);
  void read_strip(const Json& json, const std::string& where);
  void emit(std::string_view text, DecodeState& state, std::string& out) const;
  void end_run(DecodeState& state, std::string& out) const;

  bool byte_level_ = false, byte_fallback_ = false, fused_ = false;
  std::vector<Step> steps_;
  std::string stripped_;     // this character is taken off the start of the text ...
  int64_t strip_count_ = 0;  // ... up to so many times
};

}  // namespace trireme::text
