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
    bool starts = false;  // the first word begins where the whole text does
  };

  // Reads the `pre_tokenizer` object: Split, Digits, Punctuation, UnicodeScripts, Whitespace,
  // WhitespaceSplit, CharDelimiterSplit, Metaspace, ByteLevel and Sequence; null: a text is one
  // word. Throws UserError(bad_data) with `where` and the name of a type or setting that is not
  // known.
  PreTokenizer(const Json& json, const std::string& where);

  // Words are the bytes of a text, for a vocabulary in the byte-level alphabet.
  bool byte_level() const { return byte_level_; }

  // The words of `text` (valid UTF-8), in place of those that are there. `at_start`: the whole text
  // starts with it, and nothing was taken off its start.
  void split(std::string_view text, bool at_start, Words& words) const;

 private:
  // How the matches of a pattern, and the text between them, become pieces.
  enum class Behavior { isolated, removed, merged_with_previous, merged_with_next, contiguous };
  enum class Kind {
    split,        // at the matches of `pattern`
    space_first,  // ByteLevel's add_prefix_space: a piece that does not start with a space gets one
    metaspace,    // spaces become `mark`, and one is put in front
    alphabet,     // bytes become characters of the byte-level alphabet, for the stages behind it
  };
  enum class Prepend { never, first, always };
  struct Stage {
    Kind kind = Kind::split;
    std::optional<Regex> pattern = {};
    Behavior behavior = Behavior::isolated;
    bool invert = false;
    std::string mark = {};
    Prepend prepend = Prepend::never;
  };
  struct Span {
    std::string_view text;
    bool match;
  };
  static Behavior behavior_of(const Json& json, const std::string& otherwise,
                              const std::string& where);
  void read(const Json& json, const std::string& where);
  void read_sequence(const Json& json, const std::string& where);
  void read_byte_level(const Json& json, const std::string& where);
  void read_metaspace(const Json& json, const std::string& where);
  void add_split(const char* pattern, Behavior behavior, const std::string& where);
  static void run(const Stage& stage, Words& words);
  static void cut(const Stage& stage, std::string_view piece, Regex::Cursor& cursor,
                  std::vector<Span>& spans);
  static void join(Behavior behavior, const std::vector<Span>& spans,
                   std::vector<std::string_view>& pieces);

  std::vector<Stage> stages_;
  bool byte_level_ = false;
  bool in_alphabet_ = false;  // words leave the stages as characters of the alphabet
};

}  // namespace trireme::text
