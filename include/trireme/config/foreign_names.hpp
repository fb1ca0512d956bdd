// Names of settings of other systems, and the deck's keys for them: for messages about unknown keys
// and for `trireme import`. Sources: OpenRLHF 0.8 (underscores) and 0.11 (dots), TRL 1.x
// (GRPOConfig, TrainingArguments), verl 0.7 (hydra).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "trireme/config/choices.hpp"

namespace trireme::config {

enum class Origin : uint8_t { openrlhf, trl, verl };
template <>
struct Words<Origin> {
  static constexpr std::string_view list[] = {"openrlhf", "trl", "verl"};
};
// "OpenRLHF", "TRL", "verl"
std::string_view name_of(Origin origin);

// The subcommand that a deck is for.
enum class Trainer : uint8_t { ppo, sft, rm, dpo };
template <>
struct Words<Trainer> {
  static constexpr std::string_view list[] = {"ppo", "sft", "rm", "dpo"};
};

// Notes of settings that need no counterpart begin so; a key beside one is for messages alone.
inline constexpr std::string_view foreign_nothing = "nothing: ";

struct ForeignName {
  std::string_view name;  // as the other system has it, without --; "a.*": all names below a
  std::string_view key;   // "": there is none
  // Of the key, in TOML, where the other one is on or given ("": its own value). "$" stands for its
  // own value. Without a key: the value that asks for nothing, beside 0 and false.
  std::string_view value = {};
  std::string_view note = {};    // instead of a key, or beside it
  std::string_view others = {};  // the key of sft, rm and dpo where it is another one
};
std::span<const ForeignName> foreign_names(Origin origin);
// The name or null; of TRL and OpenRLHF dashes count as underscores.
const ForeignName* foreign_name(Origin origin, std::string_view name);

// The table of an origin as Markdown, for docs/user/from_*.md.
std::string foreign_table_markdown(Origin origin);

// Values that have another word here.
struct ForeignWord {
  Origin origin;
  std::string_view key;
  std::string_view word;
  std::string_view here;
};
std::span<const ForeignWord> foreign_words();
// The word here; the same word where it is not known as another system's.
std::string_view word_here(Origin origin, std::string_view key, std::string_view word);

// "(a name of verl): here it is rollout.temperature", for a key that is none; "" where nobody has
// it.
std::string foreign_hint(std::string_view name);
// The same for the last part of a name in a section of ours ("train.num_generations"); in another
// one for all of it ("lora.rank" of "ds.lora.rank").
std::string foreign_end_hint(std::string_view name, bool our_section);
// "(a word of TRL and verl): here it is group_norm"; "" where nobody has it.
std::string foreign_word_hint(std::string_view key, std::string_view word);

}  // namespace trireme::config
