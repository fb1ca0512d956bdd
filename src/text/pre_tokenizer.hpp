// Splits text into the words that BPE works on.
#pragma once

#include <deque>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/regex.hpp"
#include "trireme/text/json_text.hpp"

namespace trireme::text {

class PreTokenizer {
 public:
  // Words of one piece of text; those that got a space in front live in `storage`.
  struct Words {
    std::vector<std::string_view> list;
    std::deque<std::string> storage;
  };

  // Reads the `pre_tokenizer` object: Split, Digits and Sequence, with ByteLevel at the end. Throws
  // UserError(bad_data) with `where` and the name of a type or setting that is not known.
  PreTokenizer(const Json& json, const std::string& where);

  // The words of `text` (valid UTF-8), in place of those that are there.
  void split(std::string_view text, Words& words) const;

 private:
  // With a pattern: cuts a piece at the start and the end of each match. Without: ByteLevel's
  // add_prefix_space, a piece that does not start with a space gets one.
  struct Stage {
    std::optional<Regex> pattern;
  };
  void read(const Json& json, const std::string& where);
  void run(const Stage& stage, Words& words) const;

  std::vector<Stage> stages_;
  bool byte_level_ = false;
};

}  // namespace trireme::text
