// How tokens become text again: the `decoder` of tokenizer.json, one token after the other.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "text/regex.hpp"
#include "trireme/text/json_text.hpp"
#include "trireme/text/tokenizer.hpp"

namespace trireme::text {

class Decoder {
 public:
  // Reads ByteLevel (and Fuse), BPEDecoder, or Replace, Metaspace and Strip, then ByteFallback,
  // Fuse and Strip of the whole text. Throws UserError(bad_data) with `where` and the name of what
  // is not known.
  Decoder(const Json& json, const std::string& where);

  // Tokens are in the byte-level alphabet.
  bool byte_level() const { return byte_level_; }

  // Words end with a suffix in place of blanks between them (CLIP).
  bool by_suffix() const { return !suffix_.empty(); }

  // Appends to `out` the text that is certain with the next token; `bytes` are the token's in the
  // byte-level alphabet.
  void push(std::string_view token, std::string_view bytes, DecodeState& state,
            std::string& out) const;
  // Returns the rest and resets the state.
  void finish(DecodeState& state, std::string& out) const;

 private:
  struct Replace {
    Regex pattern;
    std::string by;
  };
  struct Metaspace {
    std::string mark;
    bool drops_first;  // those of the first token are dropped
  };
  // Takes a text off the ends, up to so many times.
  struct Strip {
    std::string text;
    int64_t start = 0, stop = 0;
  };
  using Step = std::variant<Replace, Metaspace, Strip>;
  void read(const Json& json, const std::string& where);
  static Strip read_strip(const Json& json, const std::string& where);
  static std::string run(const Step& step, std::string text, bool first);
  void emit(std::string_view text, DecodeState& state, std::string& out) const;
  std::string with_suffix_as(std::string_view by, const std::string& token) const;
  void end_run(DecodeState& state, std::string& out) const;

  bool byte_level_ = false, byte_fallback_ = false, fused_ = false;
  std::vector<Step> steps_;
  Strip strip_;         // of the whole text
  std::string suffix_;  // of a word's last token, for a blank
};

}  // namespace trireme::text
