#include "trireme/text/pattern.hpp"

#include "text/pcre2_match.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/log.hpp"

namespace trireme::text {

struct Pattern::Code {
  pcre2_code* code = nullptr;
  uint32_t groups = 0;
  std::string key;
  mutable int64_t given_up = 0;

  ~Code() { pcre2_code_free(code); }
  Pcre2Match match() const {
    return Pcre2Match(pcre2_match_data_create_from_pattern(code, nullptr));
  }
};

Pattern::Pattern(std::string_view pattern, std::string_view key, Case letter_case, Extent extent) {
  uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF;
  if (letter_case == Case::ignored) options |= PCRE2_CASELESS;
  if (extent == Extent::whole) options |= PCRE2_ANCHORED | PCRE2_ENDANCHORED | PCRE2_DOTALL;
  int error = 0;
  size_t offset = 0;
  auto code = std::make_shared<Code>();
  code->key = key;
  code->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), options,
                             &error, &offset, nullptr);
  if (code->code == nullptr) {
    char reason[256] = "";
    pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(reason), sizeof reason);
    throw UserError(ExitCode::configuration,
                    base::text(key, " = \"", pattern, "\": not a regular expression (", reason,
                               " at character ", offset + 1, "): correct the pattern"));
  }
  pcre2_jit_compile(code->code, PCRE2_JIT_COMPLETE);  // without JIT the interpreter does the same
  pcre2_pattern_info(code->code, PCRE2_INFO_CAPTURECOUNT, &code->groups);
  code_ = std::move(code);
}

Pattern Pattern::built_in(std::string_view pattern) {
  return {pattern, "a pattern of the program", Case::sensitive, Extent::part};
}

namespace {

bool is_power_of_ten(int64_t count) {
  while (count % 10 == 0) count /= 10;
  return count == 1;
}

// Runs one match from `start`; false without a match. A pattern that backtracks beyond PCRE2's
// limit does not match: a model's text must not stop the run.
template <class Code>
bool run(const Code& code, std::string_view text, size_t start, const Pcre2Match& match) {
  const int found = match.run(code.code, text, start, 0);
  if (found >= 0) return true;
  if (found != PCRE2_ERROR_NOMATCH && is_power_of_ten(++code.given_up)) {
    log::warning(
        base::text(code.key, ": PCRE2 gave up on a text of ", text.size(), " bytes (error ", found,
                   "), which counts as no match; ", code.given_up,
                   " times so far: a pattern without repetitions in repetitions does not"));
  }
  return false;
}

// Bounds of the first group where it took part, else of the match.
std::string_view captured(std::string_view text, const Pcre2Match& match, uint32_t groups) {
  const size_t* bounds = match.bounds();
  const size_t at = groups > 0 && match.pairs() > 1 && bounds[2] != PCRE2_UNSET ? 2 : 0;
  return text.substr(bounds[at], bounds[at + 1] - bounds[at]);
}

}  // namespace

int64_t Pattern::given_up() const { return code_->given_up; }

std::optional<size_t> Pattern::group(const std::string& name) const {
  const int number =
      pcre2_substring_number_from_name(code_->code, reinterpret_cast<PCRE2_SPTR>(name.c_str()));
  return number > 0 ? std::optional(static_cast<size_t>(number)) : std::nullopt;
}

bool Pattern::matches(std::string_view text) const { return run(*code_, text, 0, code_->match()); }

std::optional<std::string_view> Pattern::find_last(std::string_view text) const {
  const Pcre2Match match = code_->match();
  std::optional<std::string_view> last;
  for (size_t start = 0; start <= text.size() && run(*code_, text, start, match);) {
    last = captured(text, match, code_->groups);
    const size_t end = match.bounds()[1];
    start = end > start ? end : start + 1;
  }
  return last;
}

std::vector<Pattern::Groups> Pattern::find_all(std::string_view text) const {
  const Pcre2Match match = code_->match();
  std::vector<Groups> all;
  for (size_t start = 0; start <= text.size() && run(*code_, text, start, match);) {
    const size_t* bounds = match.bounds();
    Groups groups(code_->groups + 1);
    for (size_t i = 0; i < groups.size(); ++i) {
      if (bounds[2 * i] != PCRE2_UNSET)
        groups[i] = text.substr(bounds[2 * i], bounds[2 * i + 1] - bounds[2 * i]);
    }
    all.push_back(std::move(groups));
    start = bounds[1] > start || bounds[1] > bounds[0] ? bounds[1] : start + 1;
  }
  return all;
}

}  // namespace trireme::text
