// Data sets of a deck, loaded with one message instead of one per rank.
#pragma once

#include "trireme/comm/comm.hpp"
#include "trireme/config/options.hpp"
#include "trireme/data/prompt_set.hpp"
#include "trireme/data/sampler.hpp"
#include "trireme/learn/training_set.hpp"
#include "trireme/text/tokenizer.hpp"

namespace trireme::driver {

// What the [data] section says about `files`; `max_tokens` limits the prompt or the whole sequence.
data::SetOptions set_options(const config::Options& options, const config::Strings& files, int64_t max_tokens);

// Prompts that leave room for at least one new token; the log says how many were left out. Every rank loads.
data::PromptSet load_prompts(const config::Options& options, const config::Strings& files, const text::Tokenizer& tokenizer,
                             const comm::CommView& world);
// Examples (sft, and the pretraining texts of ppo) or pairs (rm, dpo). Every rank loads.
learn::TrainingSet load_training(const config::Options& options, const config::Strings& files, config::Command command,
                          const text::Tokenizer& tokenizer, const comm::CommView& world);

data::PromptSampler make_sampler(const config::Options& options, const std::vector<double>& weights, const data::SetCounts& counts);

}  // namespace trireme::driver
