// Mistakes in the keys of reward sources.
#include <charconv>
#include <cmath>
#include <map>
#include <set>
#include <string_view>

#include "config/key.hpp"
#include "config/validate_losses.hpp"
#include "trireme/base/text.hpp"
#include "trireme/config/reward_sources.hpp"

namespace trireme::config {
namespace {

// On an answer: its number has so many values for each sample (trireme::request_id).
constexpr int64_t most_votes = 256;

using KindSet = std::set<RewardKind>;

// The kinds of sources that have a key; those of rules are not listed.
const std::map<std::string, KindSet, std::less<>>& kinds_of_keys() {
  static const std::map<std::string, KindSet, std::less<>> kinds = [] {
    std::map<std::string, KindSet, std::less<>> out;
    for (const char* key : {"kind", "name", "weight"})
      out[key] = {RewardKind::rule, RewardKind::model, RewardKind::plugin, RewardKind::judge};
    for (const char* key : {"path", "max_len"}) out[key] = {RewardKind::model, RewardKind::judge};
    out["batch_tokens"] = {RewardKind::model};
    for (const char* key : {"command", "timeout", "processes", "whole_groups"})
      out[key] = {RewardKind::plugin};
    for (const char* key : {"prompt_template", "system", "chat_template_kwargs", "score_pattern",
                            "score_match", "score_words", "score_range", "no_score", "votes",
                            "vote_rule", "temperature", "max_new_tokens", "max_batch"})
      out[key] = {RewardKind::judge};
    return out;
  }();
  return kinds;
}

}  // namespace

std::optional<ScoreWord> score_word(std::string_view entry) {
  const size_t equals = entry.rfind('=');
  if (equals == std::string_view::npos || equals == 0) return std::nullopt;
  const std::string_view number = entry.substr(equals + 1);
  double value = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  if (error != std::errc{} || end != number.data() + number.size() || !std::isfinite(value))
    return std::nullopt;
  return ScoreWord{std::string(entry.substr(0, equals)), value};
}

// It would be ignored silently.
std::vector<std::string> keys_of_other_kinds(const std::string& at, const RewardSource& source) {
  static const RewardSource initial;
  std::vector<std::string> mistakes;
  for (const auto& key : source_keys()) {
    if (key.dump(source) == key.dump(initial)) continue;
    const auto found = kinds_of_keys().find(key.name());
    const KindSet owners =
        found == kinds_of_keys().end() ? KindSet{RewardKind::rule} : found->second;
    if (owners.contains(source.kind)) continue;
    std::vector<std::string> names;
    for (const RewardKind kind : owners) names.push_back(base::text('"', to_string(kind), '"'));
    mistakes.push_back(base::text(at, key.name(), " is for kind = ", base::join(names, " or "),
                                  ", this source has kind = \"", to_string(source.kind), "\""));
  }
  return mistakes;
}

std::vector<std::string> judge_mistakes(const std::string& at, const RewardSource& judge) {
  std::vector<std::string> mistakes;
  const auto refuse_if = [&](bool wrong, const auto&... parts) {
    if (wrong) mistakes.push_back(base::text(at, parts...));
  };
  refuse_if(judge.prompt_template.empty(),
            "prompt_template is missing (kind = \"judge\" needs what to ask): set a text with "
            "{{ prompt }} and {{ response }}");
  refuse_if(judge.score_pattern.empty(),
            "score_pattern is empty (it finds the score in what the judge writes): set one, or "
            "leave the key out");
  refuse_if(judge.votes > 1 && judge.temperature == 0, "votes = ", judge.votes,
            " with temperature = 0 (all votes would be the same): set a temperature, or votes = 1");
  refuse_if(judge.votes == 1 && judge.vote_rule != RewardSource{}.vote_rule, "vote_rule = \"",
            to_string(judge.vote_rule), "\" with votes = 1 (it would not count): set votes");
  refuse_if(judge.max_len > 0 && judge.max_len <= judge.max_new_tokens, "max_len = ", judge.max_len,
            " leaves no room for a prompt beside max_new_tokens = ", judge.max_new_tokens,
            ": set max_len greater");
  refuse_if(judge.score_range && (*judge.score_range)[0] == (*judge.score_range)[1],
            "score_range has equal ends (every score would be the same): give a lowest and a "
            "highest score");
  std::set<std::string> words;
  for (const std::string& entry : judge.score_words) {
    const auto word = score_word(entry);
    refuse_if(!word, "score_words has \"", entry, "\": write \"WORD=NUMBER\", such as \"yes=1\"");
    refuse_if(word && !words.insert(word->word).second, "score_words has the word \"",
              word ? word->word : "", "\" twice: remove one");
  }
  return mistakes;
}

std::vector<std::string> vote_mistakes(const Options& options) {
  int64_t votes = 0;
  for (const RewardSource& source : options.reward.source) {
    if (source.kind == RewardKind::judge) votes += source.votes;
  }
  if (votes <= most_votes) return {};
  return {base::text("the judges have ", votes, " votes on an answer, the most is ", most_votes,
                     ": set reward.source.votes lower")};
}

}  // namespace trireme::config
