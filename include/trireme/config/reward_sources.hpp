// Names of a deck's reward sources: they are parts of file names and of metrics.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/config/options.hpp"

namespace trireme::config {

// Of source `index`: its own, else kind and index.
std::string source_name(const RewardSource& source, size_t index);
// The name of what [environment] gives, which is one more source.
inline constexpr std::string_view environment_source = "environment";
// The name of all tools that environment.tools does not have, in metrics.
inline constexpr const char* environment_other_tools = "other";
// Why this cannot be a source's name; empty where it can.
std::string source_name_problem(std::string_view name);
// Whether some source compares the answers to a prompt: one rank scores all of them.
bool needs_whole_groups(const Options& options);

// A language model that judges: sources that name the same folder share it.
struct JudgeModel {
  std::string path = {};
  std::vector<size_t> sources = {};  // their places in the deck
  int64_t max_batch = 0;             // the most of its sources
  int64_t max_len = 0;               // tokens, likewise; it may have fewer positions
};
// In the order of the deck.
std::vector<JudgeModel> judge_models(const Options& options);
// Tokens of a judge's longest sequence as the deck has it.
int64_t judge_max_len(const RewardSource& judge, const Options& options);

// An entry of a judge's score_words; nullopt: it is not "WORD=NUMBER".
struct ScoreWord {
  std::string word;
  double value = 0;
};
std::optional<ScoreWord> score_word(std::string_view entry);

}  // namespace trireme::config
