// Regular expressions of `tokenizer.json`, which Hugging Face runs with Oniguruma, on PCRE2.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace trireme::text {

class Regex {
 public:
  // The matching position of one thread.
  class Cursor;

  // Compiles a pattern of Oniguruma's syntax. Throws UserError(bad_data) with `where` when it does
  // not compile or uses something that the two engines understand differently.
  Regex(std::string_view pattern, const std::string& where);
  // A pattern that matches just this text.
  static Regex literal(std::string_view text, const std::string& where);

  // The first match at or after `from`; false when there is none. `text` is valid UTF-8, `from` a
  // character boundary. Throws InternalError when PCRE2 gives up.
  bool find(std::string_view text, size_t from, Cursor& cursor, size_t& start, size_t& end) const;

 private:
  struct Code;
  std::shared_ptr<const Code> code_;
};

class Regex::Cursor {
 public:
  Cursor();
  ~Cursor();
  Cursor(const Cursor&) = delete;
  Cursor& operator=(const Cursor&) = delete;

 private:
  friend class Regex;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme::text
