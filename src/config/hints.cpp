// What to say about keys that are not ours.
#include <algorithm>
#include <array>

#include "config/key.hpp"
#include "trireme/base/text.hpp"
#include "trireme/config/foreign_names.hpp"

namespace trireme::config {

namespace {

struct NotBuilt {
  std::string_view word;  // a whole word of the key, words being separated by dots and underscores
  std::string_view what;
};
constexpr std::array not_built{
    NotBuilt{"moe", "mixtures of experts"},
    NotBuilt{"expert", "mixtures of experts"},
    NotBuilt{"experts", "mixtures of experts"},
    NotBuilt{"aux_loss_coef", "mixtures of experts (their balancing loss)"},
    NotBuilt{"vision", "vision models"},
    NotBuilt{"visual", "vision models"},
    NotBuilt{"image", "vision models"},
    NotBuilt{"images", "vision models"},
    NotBuilt{"vlm", "vision models"},
    NotBuilt{"fp8", "FP8"},
    NotBuilt{"4bit", "quantised training"},
    NotBuilt{"quantization", "quantised weights"},
    NotBuilt{"reward.lora", "an adapter of a reward model (reward.source.path may be its folder)"},
    NotBuilt{"qlora", "adapters on quantised weights"},
    NotBuilt{"dora", "DoRA"},
    NotBuilt{"muon", "the Muon optimizer (AdamW only)"},
    NotBuilt{"ring_attn", "context parallelism"},
    NotBuilt{"context_parallel", "context parallelism"},
    NotBuilt{"train.tensor_parallel",
             "tensor parallelism in training (generate.tensor_parallel is that of generation)"},
    NotBuilt{"actor.tensor_parallel",
             "tensor parallelism in training (generate.tensor_parallel is that of generation)"},
    NotBuilt{"pipeline_parallel", "pipeline parallelism"},
};

// Programs that other trainers name in keys of their own (use_wandb, logger.tensorboard_dir).
constexpr std::array<std::string_view, 3> sinks{"wandb", "tensorboard", "mlflow"};

// How they call episodes of several turns.
constexpr std::array<std::string_view, 4> episode_words{"multiturn", "multi_turn", "agent",
                                                        "tools"};

bool contains_word(std::string_view key, std::string_view word) {
  const auto separates = [](char c) { return c == '.' || c == '_'; };
  for (size_t at = key.find(word); at != std::string_view::npos; at = key.find(word, at + 1)) {
    const size_t end = at + word.size();
    if ((at == 0 || separates(key[at - 1])) && (end == key.size() || separates(key[end])))
      return true;
  }
  return false;
}

bool has_section(std::string_view key) {
  return std::ranges::any_of(sections(),
                             [&](const Section& one) { return one.name == section_of(key); });
}

// "actor.lr": the nearest key of its section ends with the same word, and says enough.
bool one_key_ends_so(std::string_view key) {
  const std::string_view end = key.substr(std::min(key.rfind('.'), key.size()));
  return std::ranges::count_if(key_infos(), [&](const KeyInfo& info) {
           return section_of(info.name) == section_of(key) && info.name.ends_with(end);
         }) == 1;
}

}  // namespace

std::string hint_for(std::string_view key) {
  if (std::string hint = foreign_hint(key); !hint.empty()) return hint;
  if (key.starts_with("data.chat_template_kwargs."))
    return "is in a table, but the variables are the JSON of an object in a text: "
           "data.chat_template_kwargs = '{\"enable_thinking\": false}'";
  for (const std::string_view sink : sinks) {
    if (contains_word(key, sink))
      return base::text("(a name of other programs): here it is report.sinks = [\"", sink,
                        "\"], files in run.dir; the program opens no connection");
  }
  for (const std::string_view word : episode_words) {
    if (contains_word(key, word))
      return "asks for episodes of several turns: here a program of yours in [environment] answers "
             "them (docs/user/environments.md)";
  }
  for (const auto& entry : not_built) {
    if (contains_word(key, entry.word))
      return base::text("asks for ", entry.what, ", which Trireme does not have: remove it");
  }
  return one_key_ends_so(key) ? "" : foreign_end_hint(key, has_section(key));
}

}  // namespace trireme::config
