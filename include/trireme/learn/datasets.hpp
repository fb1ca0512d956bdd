// Data sets of a deck, loaded with one message instead of one per rank.
#pragma once

#include <cstdint>
#include <optional>

#include "trireme/comm/comm.hpp"
#include "trireme/config/options.hpp"
#include "trireme/data/prompt_set.hpp"
#include "trireme/data/sampler.hpp"
#include "trireme/learn/training_set.hpp"
#include "trireme/text/tokenizer.hpp"

namespace trireme::learn {

text::SpecialTokens special_tokens_of(config::AddSpecialTokens choice);

// The deck's tokenizer, with what its [data] section says to chat templates (data.date settled).
// Throws UserError(configuration) where that cannot be used. Local.
text::Tokenizer load_tokenizer(const config::Options& options);

// The [data] section's settings for `files`; `max_tokens` limits the prompt or the whole sequence.
data::SetOptions set_options(const config::Options& options, const config::Strings& files,
                             int64_t max_tokens);

// Prompts that leave room for at least one new token; the log says how many were left out. Every
// rank loads, and the ranks of a node encode a share each. Collective over `world`.
data::PromptSet load_prompts(const config::Options& options, const config::Strings& files,
                             const text::Tokenizer& tokenizer, const comm::CommView& world);
// Tokens of the longest sequence that a run of ppo can make of these prompts, and of the shortest
// prompt that it trains with.
struct SequenceLimits {
  int64_t longest = 0, shortest_prompt = 0;
};
SequenceLimits sequence_limits(const config::Options& options, const data::PromptSet& prompts,
                               const std::optional<data::PromptSet>& held_out);
// Examples (sft, and the pretraining texts of ppo) or pairs (rm, dpo). Every rank loads.
TrainingSet load_training(const config::Options& options, const config::Strings& files,
                          config::Command command, const text::Tokenizer& tokenizer,
                          const comm::CommView& world);

// The texts of actor.ptx_coef (PPO-ptx).
class PretrainingTexts {
 public:
  // `trainers`: those with sequences of their own, among whom rows are shared out. Collective over
  // world.
  PretrainingTexts(const config::Options& options, const text::Tokenizer& tokenizer,
                   const comm::CommView& world, const comm::CommView& trainers);
  // The rows of an iteration's optimizer steps, the same on every rank without a message. Valid as
  // long as the texts.
  PretrainingRows draw(int64_t optimizer_steps);
  data::SamplerState state() const { return sampler_.state(); }
  void restore(const data::SamplerState& state) { sampler_.restore(state); }
  const TrainingSet& rows() const { return rows_; }

 private:
  TrainingSet rows_;
  data::PromptSampler sampler_;
  int64_t rows_per_step_;
  int64_t micro_batch_tokens_;
  comm::CommView trainers_;
};

data::PromptSampler make_sampler(const config::Options& options, const std::vector<double>& weights,
                                 const data::SetCounts& counts);

}  // namespace trireme::learn
