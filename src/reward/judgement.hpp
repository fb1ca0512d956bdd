// A judge's question and the score in its text. No model, no MPI.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/config/options.hpp"
#include "trireme/reward/reward.hpp"
#include "trireme/text/chat_template.hpp"
#include "trireme/text/pattern.hpp"
#include "trireme/text/tokenizer.hpp"

namespace trireme::reward {

class Question {
 public:
  // `key`: of the source, "reward.source.0."; `own`: the judge's tokenizer. Throws
  // UserError(configuration) for a template that is none or does not show the answer, and for
  // variables that are not a JSON object.
  Question(const config::RewardSource& judge, const std::string& key, const text::Tokenizer& own,
           const std::string& date);

  // Tokens of the question, up to where the judge's text begins. Special tokens of the judge that
  // an answer has in letters are left out of it: they could end the judge's turn. Throws
  // UserError(bad_data) naming the request.
  std::vector<int32_t> tokens(const Request& request) const;
  // The user's turn. Throws as tokens().
  std::string user_turn(const Request& request) const;

 private:
  std::string rendered(const Request& request, const std::string& response) const;
  std::string without_special_tokens(std::string response) const;

  text::Tokenizer own_;
  text::ChatTemplate template_;
  std::string system_;
  std::string key_;
  std::vector<std::string> special_;  // texts of the judge's special tokens
};

class ScoreReader {
 public:
  // Throws UserError(configuration) for a pattern that does not compile.
  ScoreReader(const config::RewardSource& judge, const std::string& key);
  // Of a text that the judge wrote; nullopt: it has none.
  std::optional<double> read(std::string_view text) const;

 private:
  std::optional<std::string_view> found(std::string_view text) const;
  std::optional<double> number_of(std::string_view word) const;

  text::Pattern pattern_;
  config::ScoreMatch match_;
  std::vector<std::pair<text::Pattern, double>> words_;
  std::optional<config::Range> range_;
};

// The score of votes that have one; nullopt: there are none.
std::optional<double> joint_score(config::VoteRule rule, std::vector<double> votes);

// Samples::judgements of an answer: {"question", "texts" of the votes, "votes_left_out"?}. At most
// 4 KiB of the question (its middle is cut out) and 2 KiB of a text are kept; no further texts
// after 8 KiB.
std::string judgement_json(std::string_view question, std::span<const std::string> texts);

}  // namespace trireme::reward
