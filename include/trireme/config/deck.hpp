// A deck (TOML) and overrides into `Options`, and back.
//
// Every mistake of a deck is collected and reported in one UserError(configuration), a line each
// with file:line and the key: unknown keys (with the nearest known one), wrong types, values out of
// range, NaN, keys set twice. Relative paths are relative to the working directory.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/config/options.hpp"

namespace trireme::config {

// Reads `path` and applies `overrides` ("section.key=value", value in TOML syntax, a bare word is a
// string; an override wins over the deck, the same key twice among the overrides is a mistake).
// `reward.source.0.weight=2` changes one element of the list. Throws UserError: input_missing or
// permission for the file, configuration for its content.
Options load_deck(const std::filesystem::path& path, std::span<const std::string> overrides = {});

// The same from a text; `name` stands for the file in messages.
Options parse_deck(std::string_view text, std::string_view name = "deck",
                   std::span<const std::string> overrides = {});

// All keys with their values as TOML that parse_deck reads back to equal Options; every default
// included.
std::string dump_deck(const Options& options);
// Whether dump_deck has written it, of this version.
bool is_dump(std::string_view text);

// Refuses combinations that cannot work or cannot mean what they say, all at once, with the reason;
// UserError(configuration). `deck` is the deck's path for messages; also looks whether the input
// files of the options exist (input_missing).
struct ValidateInputs {
  std::filesystem::path deck;  // a missing relative path that exists beside the deck is pointed out
  bool check_files = true;
  // For a plan: the deck may lack model, prompts, tokenizer and rewards, and files may be
  // elsewhere.
  bool shapes_suffice = false;
};
// Where shapes suffice, returns what is missing but for models, a line each; else nothing.
std::vector<std::string> validate(const Options& options, Command command,
                                  const ValidateInputs& inputs = {});

// Combinations that work but are seldom meant; for the log.
std::vector<std::string> warnings(const Options& options, Command command);

// Metrics of an evaluation by which ckpt.best_metric may choose; fixed names, so that a deck can be
// checked before the run.
std::vector<std::string> selection_metrics(const Options& options, Command command);
// Whether a smaller value of such a metric is the better one.
bool smaller_is_better(std::string_view metric);

// "90s", "30m", "1h30m", "2:00:00", "1-12:00:00" (days), "90": seconds; throws
// UserError(configuration) naming `key`.
double parse_duration(std::string_view text, std::string_view key = "duration");

}  // namespace trireme::config
