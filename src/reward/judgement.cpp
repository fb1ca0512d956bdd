#include "reward/judgement.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <numeric>

#include "trireme/base/error.hpp"
#include "trireme/base/text.hpp"
#include "trireme/config/reward_sources.hpp"
#include "trireme/text/utf8.hpp"

namespace trireme::reward {
namespace {

using Json = nlohmann::ordered_json;

text::ChatTemplate parsed(const std::string& source, const std::string& key) {
  try {
    return {source, key};
  } catch (const UserError& error) { throw UserError(ExitCode::configuration, error.what()); }
}

std::vector<std::string> special_texts(const text::Tokenizer& tokenizer) {
  std::vector<std::string> out;
  for (text::TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!tokenizer.is_special(id)) continue;
    if (auto token = tokenizer.id_to_token(id); token && !token->empty())
      out.push_back(std::move(*token));
  }
  return out;
}

// A plain prompt, or the last turn of the user.
std::string prompt_text(const Request& request) {
  if (request.messages.empty()) return request.prompt;
  for (size_t i = request.messages.size(); i-- > 0;) {
    if (request.messages[i].role == "user") return text::content_text(request.messages[i]);
  }
  return text::content_text(request.messages.back());
}

// A pattern for just this word.
std::string quoted(std::string_view word) {
  std::string out;
  for (const char c : word) {
    const bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                          (c >= '0' && c <= '9') || static_cast<unsigned char>(c) >= 0x80;
    if (!is_plain) out += '\\';
    out += c;
  }
  return out;
}

std::string_view without_space(std::string_view text) {
  text.remove_prefix(text::leading_space(text, text::is_python_space));
  text.remove_suffix(text::trailing_space(text, text::is_python_space));
  return text;
}

}  // namespace

Question::Question(const config::RewardSource& judge, const std::string& key,
                   const text::Tokenizer& own, const std::string& date)
    : own_(own),
      template_(parsed(judge.prompt_template, key + "prompt_template")),
      system_(judge.system),
      key_(key),
      special_(special_texts(own)) {
  if (!judge.chat_template_kwargs.empty()) {
    text::check_template_variables(judge.chat_template_kwargs, key + "chat_template_kwargs",
                                   ExitCode::configuration);
  }
  own_ = own.with_template_inputs({judge.chat_template_kwargs, date});
  Request trial;
  trial.prompt = trial.label = "0";
  trial.messages = {{"user", "0", ""}};
  VALIDATE(rendered(trial, "one answer") != rendered(trial, "another"), ExitCode::configuration,
           key_,
           "prompt_template does not show the answer (every answer would be judged alike): "
           "write {{ response }} where it belongs");
}

// Repeats, since removing one token may join the text around it into another.
std::string Question::without_special_tokens(std::string response) const {
  for (bool found = true; found;) {
    found = false;
    for (const std::string& token : special_) {
      for (size_t at = 0; (at = response.find(token, at)) != std::string::npos;) {
        response.erase(at, token.size());
        found = true;
      }
    }
  }
  return response;
}

std::string Question::rendered(const Request& request, const std::string& response) const {
  Json variables;
  variables["prompt"] = prompt_text(request);
  variables["response"] = response;
  variables["label"] = request.label;
  variables["finish_reason"] = to_string(request.finish_reason);
  variables["extra"] = request.extra.empty() ? Json::object() : Json::parse(request.extra);
  return template_.render(
      request.messages, text::GenerationPrompt::without, {},
      {.variables = variables.dump(-1, ' ', false, Json::error_handler_t::replace),
       .date = own_.template_inputs().date});
}

std::string Question::user_turn(const Request& request) const {
  try {
    return rendered(request, without_special_tokens(request.response));
  } catch (const UserError& error) {
    throw UserError(error.code(),
                    base::text(key_, "prompt_template, ", described(request), ": ", error.what()));
  }
}

std::vector<int32_t> Question::tokens(const Request& request) const {
  const std::string asked = user_turn(request);
  if (!own_.has_chat_template()) {
    const std::string whole = system_.empty() ? asked : base::text(system_, "\n\n", asked);
    return own_.encode(whole, text::SpecialTokens::once);
  }
  std::vector<text::Message> turns;
  if (!system_.empty()) turns.push_back({"system", system_, ""});
  turns.push_back({"user", asked, ""});
  try {
    return own_.encode_chat(turns, text::GenerationPrompt::with);
  } catch (const UserError& error) {
    throw UserError(error.code(), base::text("the judge's chat template (", key_, "path), ",
                                             described(request), ": ", error.what()));
  }
}

ScoreReader::ScoreReader(const config::RewardSource& judge, const std::string& key)
    : pattern_(judge.score_pattern, key + "score_pattern", text::Pattern::Case::sensitive,
               text::Pattern::Extent::part),
      match_(judge.score_match),
      range_(judge.score_range) {
  for (const std::string& entry : judge.score_words) {
    const auto word = config::score_word(entry);
    VALIDATE(word, ExitCode::internal, key, "score_words has \"", entry, "\"");
    words_.emplace_back(text::Pattern(quoted(without_space(word->word)), key + "score_words",
                                      text::Pattern::Case::ignored, text::Pattern::Extent::whole),
                        word->value);
  }
}

// The first group that took part in the match that counts, else the whole match.
std::optional<std::string_view> ScoreReader::found(std::string_view text) const {
  const auto matches = pattern_.find_all(text);
  if (matches.empty()) return std::nullopt;
  const auto& groups = match_ == config::ScoreMatch::first ? matches.front() : matches.back();
  for (size_t group = 1; group < groups.size(); ++group) {
    if (groups[group].data() != nullptr) return groups[group];
  }
  return groups.front();
}

std::optional<double> ScoreReader::number_of(std::string_view word) const {
  for (const auto& [pattern, value] : words_) {
    if (pattern.matches(word)) return value;
  }
  if (word.starts_with('+')) word.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  const bool is_number =
      error == std::errc{} && end == word.data() + word.size() && std::isfinite(value);
  return is_number ? std::optional(value) : std::nullopt;
}

std::optional<double> ScoreReader::read(std::string_view text) const {
  const auto word = found(text);
  const auto number = word ? number_of(without_space(*word)) : std::nullopt;
  if (!number || !range_) return number;
  const auto [low, high] = *range_;
  if (*number < low || *number > high) return std::nullopt;
  return (*number - low) / (high - low);
}

std::optional<double> joint_score(config::VoteRule rule, std::vector<double> votes) {
  if (votes.empty()) return std::nullopt;
  const auto mean_of = [](const std::vector<double>& values) {
    return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  };
  if (rule == config::VoteRule::mean) return mean_of(votes);
  std::ranges::sort(votes);
  if (rule == config::VoteRule::median) {
    const size_t half = votes.size() / 2;
    return votes.size() % 2 == 1 ? votes[half] : (votes[half - 1] + votes[half]) / 2;
  }
  std::map<double, int64_t> counts;
  for (const double vote : votes) ++counts[vote];
  const int64_t most =
      std::ranges::max_element(counts, {}, [](const auto& entry) { return entry.second; })->second;
  std::vector<double> winners;
  for (const auto& [vote, count] : counts) {
    if (count == most) winners.push_back(vote);
  }
  return mean_of(winners);
}

namespace {

// The beginning and the end of a text that is longer, cut between characters.
std::string both_ends(std::string_view text, size_t most) {
  if (text.size() <= most) return std::string(text);
  const auto continues = [&](size_t at) { return (text[at] & 0xC0) == 0x80; };
  size_t head = most / 2, tail = text.size() - most / 2;
  while (head > 0 && continues(head)) --head;
  while (tail < text.size() && continues(tail)) ++tail;
  return base::text(text.substr(0, head), " [... ", tail - head, " bytes ...] ", text.substr(tail));
}

}  // namespace

std::string judgement_json(std::string_view question, std::span<const std::string> texts) {
  constexpr size_t longest_question = 4096, longest_text = 2048, longest_texts = 8192;
  nlohmann::ordered_json out{{"question", both_ends(question, longest_question)},
                             {"texts", nlohmann::ordered_json::array()}};
  size_t bytes = 0, shown = 0;
  for (; shown < texts.size(); ++shown) {
    std::string text = both_ends(texts[shown], longest_text);
    if (bytes += text.size(); bytes > longest_texts) break;
    out["texts"].push_back(std::move(text));
  }
  if (shown < texts.size()) out["votes_left_out"] = texts.size() - shown;
  return out.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace trireme::reward
