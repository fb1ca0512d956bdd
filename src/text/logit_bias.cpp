#include "trireme/text/logit_bias.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>

#include "trireme/base/error.hpp"
#include "trireme/text/utf8.hpp"

namespace trireme::text {
namespace {

constexpr std::string_view text_mark = "text:";
constexpr double largest_bias = 100;

template <class Number>
std::optional<Number> number_in(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

int32_t token_of(const Tokenizer& tokenizer, std::string_view text, const std::string& key) {
  VALIDATE(first_invalid_utf8(text) == std::string_view::npos, ExitCode::configuration, key,
           " has a text that is not UTF-8: name the token by its id");
  if (const auto special = tokenizer.token_to_id(text); special && tokenizer.is_special(*special))
    return *special;
  const auto ids = tokenizer.encode(text);
  std::vector<std::string> list;
  for (const TokenId id : ids) list.push_back(base::text(id));
  VALIDATE(ids.size() == 1, ExitCode::configuration, key, ": the text \"", text, "\" is ",
           ids.size(), " tokens (", base::join(list), "): name a token by its id");
  return ids.front();
}

}  // namespace

std::vector<TokenBias> token_biases(const Tokenizer& tokenizer,
                                    const std::vector<std::string>& entries, int64_t vocabulary,
                                    const std::string& key) {
  std::vector<TokenBias> biases;
  for (const std::string_view entry : entries) {
    const size_t equals = entry.rfind('=');  // the text may have one too
    const std::string_view token = entry.substr(0, equals);
    const auto bias =
        number_in<double>(equals == std::string_view::npos ? "" : entry.substr(equals + 1));
    const bool is_text = token.starts_with(text_mark) && token.size() > text_mark.size();
    const auto number = is_text ? std::nullopt : number_in<int64_t>(token);
    VALIDATE(bias && std::abs(*bias) <= largest_bias && (is_text || number),
             ExitCode::configuration, key, " has \"", entry,
             "\": write \"ID=BIAS\" or \"text:TEXT=BIAS\" with a bias from -100 to 100");
    const int64_t id = is_text ? token_of(tokenizer, token.substr(text_mark.size()), key) : *number;
    VALIDATE(id >= 0 && id < vocabulary, ExitCode::configuration, key, " has token ", id,
             ", the model's vocabulary has ", vocabulary,
             " tokens (such a token never comes): correct or remove it");
    biases.push_back({static_cast<int32_t>(id), static_cast<float>(*bias)});
  }
  std::ranges::sort(biases, {}, &TokenBias::id);
  const auto twice = std::ranges::adjacent_find(biases, {}, &TokenBias::id);
  VALIDATE(twice == biases.end(), ExitCode::configuration, key, " names token ", twice->id,
           " twice: remove one of the two");
  return biases;
}

}  // namespace trireme::text
