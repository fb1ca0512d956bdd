// Judges: language models that are asked for the score of an answer.
//
// A judge is one replica on each reward rank. It writes with the generation engine whenever its
// rank waits or is between two steps of something else (comm::Progress), beginning with an answer
// as soon as that is there. Sources that name the same folder share weights, pages and engine. A
// vote is a function of (run.seed, prompt, sample, vote) alone: the rank and the other sequences of
// its batch do not change it.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trireme/comm/progress.hpp"
#include "trireme/config/options.hpp"
#include "trireme/data/prompt_set.hpp"
#include "trireme/generate/engine.hpp"
#include "trireme/reward/reward.hpp"

namespace trireme::reward {

struct JudgeEnvironment {
  at::Device device = at::kCPU;
  generate::EngineOptions engine;  // as generate::engine_options() gives them
  bool in_step = false;  // it begins in score(), in the order of ids: where the bits of a step
                         // depend on what is in it
  bool leads = true;     // writes what it does to the log
  comm::Progress* progress = nullptr;  // of the rank that waits; null: nothing else makes progress
};

// The judges of the deck by their place among the sources; null: another kind. Loads the models.
// Local. Throws UserErrors as check_judges(), out_of_memory.
std::vector<std::unique_ptr<Source>> make_judges(const config::Options& options,
                                                 const JudgeEnvironment& environment);

// Compiles templates, patterns and variables of all judges, reads their folders (config.json, the
// headers of weights, tokenizers) and renders the first record of every data file. Local. A line
// for each judge: the tokens of its prompts for empty answers. Throws UserError(configuration),
// input_missing, bad_data.
std::vector<std::string> check_judges(const config::Options& options,
                                      std::span<const data::PromptSet* const> sets);

}  // namespace trireme::reward
