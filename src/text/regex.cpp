#include "text/regex.hpp"

#include <array>

#include "text/pcre2_match.hpp"
#include "trireme/base/error.hpp"

namespace trireme::text {

namespace {

std::string message_of(int error) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(error, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

// Rewrites the escapes that mean another set of characters to PCRE2 and refuses what cannot be
// carried over.
class Translator {
 public:
  Translator(std::string_view pattern, const std::string& where)
      : pattern_(pattern), where_(where) {}

  std::string run() {
    for (; at_ < pattern_.size(); ++at_) {
      const char c = pattern_[at_];
      if (c == '\\') {
        escape();
        continue;
      }
      if (!in_class_ && (c == '^' || c == '$')) {  // of a line, to Oniguruma
        out_ += c == '^' ? "(?m:^)" : "(?m:$)";
        continue;
      }
      if (!in_class_ && c == '(') options();
      bracket(c);
      const bool counted =
          !in_class_ && c == '}' && at_ + 1 < pattern_.size() && pattern_[at_ + 1] == '+';
      if (counted) refuse("{n,m}+, which is not possessive in Oniguruma");
      out_ += c;
    }
    return std::move(out_);
  }

 private:
  void escape() {
    if (at_ + 1 == pattern_.size()) refuse("a backslash at the end");
    const char next = pattern_[++at_];
    if (next == 's') {
      out_ += "\\p{White_Space}";  // PCRE2's own \s has U+180E too
    } else if (next == 'S') {
      out_ += "\\P{White_Space}";
    } else if (next == 'u' && four_digits()) {  // of a character
      out_.append("\\x{").append(pattern_.substr(at_ + 1, 4)).append("}");
      at_ += 4;
    } else {
      const bool alphanumeric = (next >= '0' && next <= '9') || (next >= 'A' && next <= 'Z') ||
                                (next >= 'a' && next <= 'z');
      const bool same = std::string_view("dDpPrntfax").find(next) != std::string_view::npos;
      if (alphanumeric && !same) refuse(base::text("\\", next));
      out_ += '\\';
      out_ += next;
      const bool braces = (next == 'p' || next == 'P' || next == 'x') &&
                          at_ + 1 < pattern_.size() && pattern_[at_ + 1] == '{';
      while (braces && pattern_[at_] != '}' && at_ + 1 < pattern_.size()) out_ += pattern_[++at_];
    }
  }
  bool four_digits() const {
    const std::string_view digits = pattern_.substr(at_ + 1, 4);
    return digits.size() == 4 &&
           digits.find_first_not_of("0123456789abcdefABCDEF") == std::string_view::npos;
  }
  // Of (?imx-imx: and the like: m means other things, and Oniguruma knows no s.
  void options() const {
    const std::string_view rest = pattern_.substr(at_);
    if (!rest.starts_with("(?")) return;
    const std::string_view letters = rest.substr(2, rest.find_first_not_of("imsx-", 2) - 2);
    if (letters.find_first_of("ms") != std::string_view::npos)
      refuse(base::text("the option (?", letters));
  }
  void bracket(char c) {
    if (!in_class_) {
      in_class_ = c == '[';
      class_start_ = at_;
      return;
    }
    const bool first =
        at_ == class_start_ + 1 || (at_ == class_start_ + 2 && pattern_[at_ - 1] == '^');
    if (c == '[') refuse("a class inside a class");
    if (c == '&' && at_ + 1 < pattern_.size() && pattern_[at_ + 1] == '&') refuse("&& in a class");
    if (c == ']') {
      if (first) refuse("an empty class");
      in_class_ = false;
    }
  }
  [[noreturn]] void refuse(const std::string& what) const {
    throw UserError(
        ExitCode::bad_data,
        base::text(where_, ": the pattern \"", pattern_, "\" uses ", what, " at character ",
                   at_ + 1, ", which this reader does not know: use a tokenizer without it"));
  }

  std::string_view pattern_;
  const std::string& where_;
  std::string out_;
  size_t at_ = 0;
  bool in_class_ = false;
  size_t class_start_ = 0;
};

}  // namespace

struct Regex::Code {
  Code(const std::string& pattern, const std::string& source) : where(source) {
    int error = 0;
    PCRE2_SIZE offset = 0;
    code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                         PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr);
    VALIDATE(code != nullptr, ExitCode::bad_data, where, ": the pattern \"", pattern,
             "\" does not compile (", message_of(error), " at character ", offset,
             "): the file is damaged or needs another regular-expression engine");
    pcre2_jit_compile(code,
                      PCRE2_JIT_COMPLETE);  // without a JIT the interpreter does the same, slower
  }
  ~Code() { pcre2_code_free(code); }
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  std::string where;  // file, for messages
  pcre2_code* code = nullptr;
};

struct Regex::Cursor::State {
  Pcre2Match match{pcre2_match_data_create(1, nullptr)};
};

Regex::Cursor::Cursor() : state_(std::make_unique<State>()) {}
Regex::Cursor::~Cursor() = default;

Regex::Regex(std::string_view pattern, const std::string& where)
    : code_(std::make_shared<const Code>(Translator(pattern, where).run(), where)) {}

Regex Regex::literal(std::string_view text, const std::string& where) {
  std::string pattern;
  for (const char c : text) {
    if (std::string_view("\\^$.|?*+()[]{}-#&~ ").find(c) != std::string_view::npos) pattern += '\\';
    pattern += c;
  }
  return Regex(pattern, where);
}

bool Regex::find(std::string_view text, size_t from, Cursor& cursor, size_t& start,
                 size_t& end) const {
  const Pcre2Match& match = cursor.state_->match;
  const int result = match.run(code_->code, text, from, PCRE2_NO_UTF_CHECK);
  if (result == PCRE2_ERROR_NOMATCH) return false;
  VALIDATE(result >= 0, ExitCode::bad_data, code_->where, ": its pattern gives up on a text of ",
           text.size(), " bytes (", message_of(result),
           "): shorten the text, or use a tokenizer with another pattern");
  const PCRE2_SIZE* offsets = match.bounds();
  start = offsets[0];
  end = offsets[1];
  return true;
}

}  // namespace trireme::text
