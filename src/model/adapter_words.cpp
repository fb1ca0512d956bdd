#include "adapter_words.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <utility>

#include "trireme/base/error.hpp"
#include "trireme/base/text.hpp"
#include "trireme/model/adapter.hpp"

namespace trireme::model {

const std::string* word_for(const std::vector<std::string>& words, const std::string& module) {
  const auto found = std::ranges::find_if(words, [&](const std::string& word) {
    return module == word || module.ends_with("." + word);
  });
  return found == words.end() ? nullptr : &*found;
}

std::regex expression(const std::string& text, const std::string& key) {
  // Python has them, std::regex reads something else, which may take for ever.
  constexpr std::array<std::string_view, 6> others{"*+", "++", "?+", "}+", "\\A", "\\Z"};
  const bool known = std::ranges::none_of(
      others, [&](std::string_view one) { return text.find(one) != std::string::npos; });
  try {
    if (!known) throw std::regex_error(std::regex_constants::error_badrepeat);
    return std::regex(text);
  } catch (const std::regex_error&) {
    throw UserError(ExitCode::configuration,
                    base::text(key, " = \"", text,
                               "\" is not a regular expression that this program reads: name the "
                               "modules in a list"));
  }
}

namespace {

// The first pattern that a name ends with decides.
template <class T>
T by_pattern(const std::vector<std::pair<std::string, T>>& patterns, const std::string& module,
             T otherwise, const char* key) {
  for (const auto& [pattern, value] : patterns) {
    if (std::regex_match(module, expression("(.*\\.)?(" + pattern + ")", key))) return value;
  }
  return otherwise;
}

}  // namespace

int64_t Adapter::rank_of(const std::string& module) const {
  return by_pattern(rank_pattern, module, rank, "rank_pattern");
}

double Adapter::scale_of(const std::string& module) const {
  const auto r = static_cast<double>(rank_of(module));
  return by_pattern(alpha_pattern, module, alpha, "alpha_pattern") / (rslora ? std::sqrt(r) : r);
}

}  // namespace trireme::model
