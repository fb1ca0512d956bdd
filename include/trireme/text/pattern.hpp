// A PCRE2 pattern for texts that a model wrote.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::text {

class Pattern {
 public:
  enum class Case { sensitive, ignored };
  // whole: the text must match from its first to its last character, and a dot matches a line end
  // as well.
  enum class Extent { part, whole };
  // Throws UserError(configuration) naming `key`, the place and the reason when it does not
  // compile.
  Pattern(std::string_view pattern, std::string_view key, Case letter_case, Extent extent);

  // A pattern of the program's own, for parts of a text.
  static Pattern built_in(std::string_view pattern);

  bool matches(std::string_view text) const;
  // The first group of the last match, the whole match where the pattern has no group; nullopt
  // without a match.
  std::optional<std::string_view> find_last(std::string_view text) const;
  // All matches from the left, which do not overlap: of each the whole match and its groups; those
  // that took no part have no data().
  using Groups = std::vector<std::string_view>;
  std::vector<Groups> find_all(std::string_view text) const;
  // The number of a group with a name; nullopt: the pattern has none.
  std::optional<size_t> group(const std::string& name) const;
  // How often a match ended at a limit of PCRE2's, which counts as no match. The 1st, 10th, 100th,
  // ... time is a warning in the log.
  int64_t given_up() const;

 private:
  struct Code;
  std::shared_ptr<const Code> code_;
};

}  // namespace trireme::text
