// A reward model as a source (F5): a sequence's score is the head at its last token.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "trireme/comm/comm.hpp"
#include "trireme/config/options.hpp"
#include "trireme/learn/scoring.hpp"
#include "trireme/reward/model_ranks.hpp"
#include "trireme/reward/reward.hpp"
#include "trireme/text/tokenizer.hpp"
#include "trireme/zero/sharded_model.hpp"

namespace trireme::reward {

struct ModelEnvironment {
  ModelRanks ranks;
  at::Device device = at::kCPU;
  config::DType dtype = config::DType::bf16;
  bool normalize = false;        // reward.normalize_enable: (score - mean) / std of its config.json
  int64_t max_len = 2048;        // where options.max_len is 0; 0: the model's positions
  int64_t batch_tokens = 16192;  // where options.batch_tokens is 0
  std::optional<text::Tokenizer> policy_tokenizer;  // of the requests' ids: see reading.hpp;
                                                    // nullopt: ids are the reward model's own
  bool node_weights = true;                         // ShardedModelOptions::node_weights
  // The trained model on these ranks, and its folder: see Scorer::make_sources().
  const zero::ShardedModel* trained = nullptr;
  std::string trained_path = {};
  comm::Progress* progress = nullptr;  // worked on after each micro-batch
};

// Whether the folder has a reward model with all that is asked of it: config.json, the headers of
// its weights and a tokenizer of its own are read. Local. Throws UserErrors as make_model() would.
void check_model(const config::RewardSource& options, const std::string& name, bool normalize);

// Loads the model. Collective over environment.ranks.all, and so is every score().
std::unique_ptr<Source> make_model(const config::RewardSource& options, std::string name,
                                   const ModelEnvironment& environment);

}  // namespace trireme::reward
