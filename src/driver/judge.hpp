// The reward role: the reward sources of the deck and the frozen reference model.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "driver/roles.hpp"
#include "trireme/machine/threads.hpp"
#include "trireme/base/samples.hpp"
#include "trireme/config/options.hpp"
#include "trireme/data/prompt_set.hpp"
#include "trireme/reward/reward.hpp"
#include "trireme/text/tokenizer.hpp"
#include "trireme/zero/sharded_model.hpp"

namespace trireme::driver {

class Judge {
 public:
  // Starts the plugins: before any device is touched. `stop` is asked while they take their time. Collective over the reward ranks.
  Judge(const config::Options& options, const Roles& roles, const text::Tokenizer& tokenizer,
        const std::filesystem::path& log_folder, at::Device device, machine::Threads threads, std::function<bool()> stop = [] { return false; });

  // Makes rules and loads reward models, once the device is current and before the first score(). Collective over the reward ranks.
  void make_sources();
  // Loads the frozen reference, for runs whose KL term needs one. Collective over the reward ranks.
  void add_reference(const model::ModelSpec& spec, const zero::ReadRows& read);
  bool has_reference() const { return reference_ != nullptr; }

  // Fills reward, reward_parts and, with a reference, ref_log_probs. False, on all of them, when some rank was asked to stop: then nothing is
  // filled. Collective over the reward ranks.
  bool score(Samples& samples, const data::PromptSet& prompts, int64_t iteration);
  // What the models of this rank take: "reference" and "reward_" + the source's name.
  std::vector<std::pair<std::string, zero::MemoryUse>> memory() const;

 private:
  std::vector<reward::Request> requests(const Samples& samples, const data::PromptSet& prompts, int64_t iteration) const;

  config::Options options_;
  comm::CommView ranks_;
  std::shared_ptr<comm::RingMemory> rings_;
  text::Tokenizer tokenizer_;
  at::Device device_;
  machine::Threads threads_;
  std::vector<std::unique_ptr<reward::Source>> made_;  // the plugins, until make_sources()
  reward::Rewards rewards_;
  std::vector<std::string> part_names_;
  std::unique_ptr<zero::ShardedModel> reference_;
};

}  // namespace trireme::driver
