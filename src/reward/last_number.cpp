#include "reward/last_number.hpp"

#include <algorithm>
#include <string>

#include "reward/latex_text.hpp"
#include "trireme/text/pattern.hpp"

namespace trireme::reward {

using text::Pattern;
namespace {

constexpr std::string_view minus_sign = "\xE2\x88\x92";

// Texts that only contain a number come first, so that their last part is not read as one.
std::string number_pattern() {
  const std::string sign = R"((?:(?<![\w)\].])[-+\x{2212}])?)";
  const std::string currency = R"((?:\\?\p{Sc}[ \x{a0}]?)?)";
  const std::string times_and_versions = R"([0-9]+(?:\.[0-9]+)*:[0-9]+(?:[.:][0-9]+)*)"
                                         R"(|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?![0-9]))"
                                         R"(|[0-9]+(?:\.[0-9]+)?(?:\^|\*\*)\{?[-+]?[0-9]+)";
  std::string grouped;
  for (const char* separator :
       {",", R"(\{,\})", R"(\\,)", R"(['\x{2019}])", "_", R"([ \x{a0}\x{2009}\x{202f}])"}) {
    grouped += std::string("[0-9]{1,3}(?:") + separator + "[0-9]{3})+(?![0-9])|";
  }
  const std::string indian = "[0-9]{1,2}(?:,[0-9]{2})+,[0-9]{3}(?![0-9])";
  const std::string fraction = R"((?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)";
  const std::string millions = R"((?<![0-9.])[0-9]{1,3}(?:\.[0-9]{3}){2,}(?![0-9]|\.[0-9]))";
  const std::string version = R"([0-9]+(?:\.[0-9]+){2,})";
  const std::string before = "(?<![0-9])";  // a group does not begin inside of a number
  return sign + currency + "(?:" + before + "(?:" + times_and_versions + "|" + millions + "|" +
         version + ")|(?:" + before + "(?:" + grouped + indian + ")|[0-9]+)" + fraction +
         R"()|(?<![\w.])[-+\x{2212}]?)" + currency + R"(\.[0-9]+)";
}

const Pattern& numbers() {
  static const Pattern pattern = Pattern::built_in(number_pattern());
  return pattern;
}

bool is_millions(std::string_view digits) {
  const auto groups = split(digits, ".");
  return groups.size() > 2 && std::all_of(groups.begin() + 1, groups.end(),
                                          [](std::string_view group) { return group.size() == 3; });
}

// Without currency and separators; text other than one number does not parse.
std::optional<base::Decimal> value_of(std::string_view found) {
  std::string digits;
  if (found.starts_with(minus_sign)) {
    digits = "-";
    found.remove_prefix(minus_sign.size());
  }
  for (const char c : found) {
    if (is_digit(c) || std::string_view("+-.:^*eE").find(c) != std::string_view::npos) digits += c;
  }
  if (is_millions(digits)) std::erase(digits, '.');
  return base::Decimal::parse(digits);
}

}  // namespace

std::optional<base::Decimal> last_number(std::string_view text) {
  const auto found = numbers().find_last(text);
  if (!found) return std::nullopt;
  const auto at = static_cast<size_t>(found->data() - text.data());
  const bool denominator = at >= 2 && text[at - 1] == '/' && is_digit(text[at - 2]);
  return denominator ? std::nullopt : value_of(*found);
}

std::optional<base::Decimal> whole_number(std::string_view text) {
  const auto found = numbers().find_last(text);
  return found == std::optional(text) ? value_of(text) : std::nullopt;
}

}  // namespace trireme::reward
