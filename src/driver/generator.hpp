// The generator role: one replica's engine, fed with prompts, giving samples.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "driver/roles.hpp"
#include "trireme/machine/threads.hpp"
#include "trireme/base/samples.hpp"
#include "trireme/config/options.hpp"
#include "trireme/data/prompt_set.hpp"
#include "trireme/generate/engine.hpp"
#include "trireme/generate/weights.hpp"
#include "trireme/text/stops.hpp"
#include "trireme/text/tokenizer.hpp"

namespace trireme::driver {

// The prompts of a rollout, the same on every rank.
struct PromptBatch {
  int64_t iteration = 0;
  int64_t first_ordinal = 0;   // of prompt 0 within the iteration (dynamic filtering draws several times)
  std::vector<int64_t> rows;   // of the prompt set
};

// How a rollout samples; training and evaluation differ.
struct SamplingPlan {
  int64_t n = 1;
  double temperature = 1;
  uint64_t seed = 0;
};

// What a generator does next: another token of each sequence, wait until others have taken what it has written, or leave the rollout.
enum class Pace : int32_t { go, wait, leave };

struct RolloutHooks {
  // A sequence is finished, number `place` of the batch; on the replica's first rank.
  std::function<void(const Samples& sequence, int64_t place)> written;
  // Asked before each step, on every rank of the replica.
  std::function<Pace()> pace = [] { return Pace::go; };
};

// Bytes of this rank, of pages also their number.
struct GeneratorMemory {
  int64_t weights = 0;
  int64_t kv_cache_peak = 0;  // of the pages in use at the same time
  int64_t kv_pages_peak = 0;
};

class Generator {
 public:
  // Weights only, which are zero until the first sync. start() before anything else. `shared`: where this rank reads the actor's weights
  // in place, one pointer per parameter; empty: the generator has weights of its own.
  Generator(const config::Options& options, const Roles& roles, const model::ModelSpec& spec, const text::Tokenizer& tokenizer,
            at::Device device, machine::Threads threads, const std::vector<const std::byte*>& shared);
  // Makes the engine, once the weights of all roles are there: `kv_memory` is what they left of this rank's memory, of which the KV
  // cache takes its share. Collective over the replica.
  void start(int64_t kv_memory);

  generate::GeneratorWeights& weights() { return weights_; }
  const generate::EngineCounters& counters() const { return engine_->counters(); }
  GeneratorMemory memory() const;
  // Gives the memory of the KV cache back until the next rollout. Local.
  void release_cache() { engine_->release(); }
  // Bytes of KV cache that start() granted to this rank.
  int64_t kv_bytes() const { return kv_bytes_; }
  // Threads that worked in the last rollout(); 0: it was too short to say.
  int threads_worked() const { return meter_.worked(); }
  std::vector<std::string> describe() const { return engine_->describe(); }
  std::vector<std::string> differences_from_training() const { return engine_->differences_from_training(); }

  // Writes this replica's share of the batch: n samples of each of its prompts. Prompts go to replicas by their place in the batch, so the
  // texts do not depend on the replica count. False when the rollout was left before the last text was done, on all ranks of the replica
  // alike: the generator is of no use then. Collective over the replica.
  bool rollout(const data::PromptSet& prompts, const PromptBatch& batch, const SamplingPlan& plan, const RolloutHooks& hooks);

 private:
  // The most urgent of what the ranks of the replica say before `step`, which counts the engine's steps in this rollout.
  Pace agree(Pace mine, int64_t step) const;
  generate::Request make_request(const data::PromptRecord& prompt, uint64_t id, const SamplingPlan& plan) const;

  config::Options options_;
  const Roles& roles_;
  text::Tokenizer tokenizer_;
  text::Stops stops_;
  const model::ModelSpec& spec_;
  machine::Threads threads_;
  machine::ThreadMeter meter_;
  int64_t kv_bytes_ = 0;
  generate::GeneratorWeights weights_;
  std::unique_ptr<generate::Engine> engine_;
};

int64_t mean_prompt_tokens(const data::PromptSet& prompts);

}  // namespace trireme::driver
