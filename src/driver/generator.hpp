// The generator role: one replica's engine, fed with prompts, giving samples.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "driver/roles.hpp"
#include "trireme/base/samples.hpp"
#include "trireme/config/options.hpp"
#include "trireme/data/prompt_set.hpp"
#include "trireme/data/tokenizer.hpp"
#include "trireme/generate/engine.hpp"
#include "trireme/generate/weights.hpp"

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

// How an answer may end before its limit.
struct Stops {
  std::vector<int32_t> ids;          // sorted, each once
  std::vector<std::string> strings;  // what one token cannot say
};

// Bytes of this rank, of pages also their number.
struct GeneratorMemory {
  int64_t weights = 0;
  int64_t kv_cache_peak = 0;  // of the pages in use at the same time
  int64_t kv_pages_peak = 0;
};

class Generator {
 public:
  // Collective over the replica. Weights are zero until the first sync. `kv_memory`: bytes that the KV cache may share out.
  Generator(const config::Options& options, const Roles& roles, const model::ModelSpec& spec, const data::Tokenizer& tokenizer,
            at::Device device, int threads, int64_t kv_memory);

  generate::GeneratorWeights& weights() { return weights_; }
  const generate::EngineCounters& counters() const { return engine_->counters(); }
  GeneratorMemory memory() const;
  std::vector<std::string> describe() const { return engine_->describe(); }
  std::vector<std::string> differences_from_training() const { return engine_->differences_from_training(); }

  // This replica's share of the batch: n samples of each of its prompts, sorted by id, on the replica's first rank; empty
  // on its others. Prompts go to replicas by their place in the batch, so the texts do not depend on the replica count.
  // Collective over the replica.
  Samples rollout(const data::PromptSet& prompts, const PromptBatch& batch, const SamplingPlan& plan);

 private:
  generate::Request make_request(const data::PromptRecord& prompt, uint64_t id, const SamplingPlan& plan) const;

  config::Options options_;
  const Roles& roles_;
  data::Tokenizer tokenizer_;
  Stops stops_;
  int threads_;
  generate::GeneratorWeights weights_;
  std::unique_ptr<generate::Engine> engine_;
};

// A predicate that sees tokens one by one and says whether this one completed one of `strings` in their text, special tokens
// included; empty when there are none.
std::function<bool(int32_t)> stop_string_predicate(const data::Tokenizer& tokenizer, const std::vector<std::string>& strings);

// The deck's generate.backend as the engine takes it.
generate::BackendKind engine_backend(config::GenerateBackend backend);

// The end tokens of the model (unless `ignore_eos`), `ids`, and `strings`, of which each that is the text of one special token
// becomes that token. Throws UserError(configuration) naming `key` for an id outside the `vocabulary`.
Stops stops_of(const data::Tokenizer& tokenizer, bool ignore_eos, const std::vector<int64_t>& ids,
               const std::vector<std::string>& strings, int64_t vocabulary, const std::string& key);

// Bytes of KV cache for a rank: the deck's share of the `free` bytes, but not more than `sequences` of `max_len` can use.
int64_t kv_cache_bytes(const config::MemoryShare& share, const model::ModelSpec& spec, int tensor_parallel,
                       config::DType dtype, int64_t sequences, int64_t max_len, int64_t free);

}  // namespace trireme::driver
