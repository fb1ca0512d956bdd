// The generator role: one replica's engine, fed with prompts, giving samples.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "trireme/base/samples.hpp"
#include "trireme/base/token_bias.hpp"
#include "trireme/comm/roles.hpp"
#include "trireme/config/options.hpp"
#include "trireme/data/prompt_set.hpp"
#include "trireme/generate/dispatch.hpp"
#include "trireme/generate/engine.hpp"
#include "trireme/generate/weights.hpp"
#include "trireme/machine/threads.hpp"
#include "trireme/rollout/group_buffer.hpp"
#include "trireme/text/stops.hpp"
#include "trireme/text/tokenizer.hpp"
#include "trireme/trace/gauge.hpp"

namespace trireme::rollout {

// The prompts of a rollout, the same on every rank.
struct PromptBatch {
  int64_t number = 0;  // of all batches of the run
  int64_t iteration = 0;
  std::vector<int64_t> rows;     // of the prompt set
  std::vector<uint64_t> groups;  // of each prompt, ascending
};

// How a rollout samples; training and evaluation differ.
struct SamplingPlan {
  int64_t n = 1;
  double temperature = 1;
  uint64_t seed = 0;
};

// A generator's next action: another token of each sequence, wait until others have taken what it
// has written, or leave the rollout.
enum class Pace : int32_t { go, wait, leave };

// A finished sequence of a batch.
struct Finished {
  Samples sequence;
  int64_t number = 0;  // of the batch
};

// Bytes of this rank, of pages also their number.
struct GeneratorMemory {
  int64_t weights = 0;
  int64_t kv_cache_peak = 0;  // of the pages in use at the same time
  int64_t kv_pages_peak = 0;
};

// Counts of a replica's engine.
struct GeneratorWork {
  int64_t steps =
      0;  // at most one token for each slot (generate.max_batch), beside accepted guesses
  int64_t tokens = 0;           // of answers
  int64_t preemptions = 0;      // sequences put back for want of pages, to be computed again
  int64_t shared_tokens = 0;    // of prompts, that others had computed
  double seconds = 0;           // in steps
  int64_t proposed_tokens = 0;  // guesses (generate.speculation_tokens)
  int64_t accepted_tokens = 0;  // of answers, that were guessed
  int64_t dropped_tokens = 0;  // of answers that are begun again, since enough others were finished
  int64_t page_room = 0, page_room_unused = 0;  // as in generate::EngineCounters
};

class Generator {
 public:
  // Weights only, which are zero until the first sync. start() before anything else. `shared`:
  // where this rank reads the actor's weights in place, one pointer per parameter; empty: the
  // generator has weights of its own.
  Generator(const config::Options& options, const comm::Roles& roles, const model::ModelSpec& spec,
            const text::Tokenizer& tokenizer, at::Device device, machine::Threads threads,
            const std::vector<const std::byte*>& shared);
  // Makes the engine, once the weights of all roles are there: `kv_memory` is what they left of
  // this rank's memory, of which the KV cache takes its share. Collective over the replica.
  void start(int64_t kv_memory);

  generate::GeneratorWeights& weights() { return weights_; }
  const generate::EngineCounters& counters() const { return engine_->counters(); }
  GeneratorMemory memory() const;
  // Since the last call.
  GeneratorWork take_work();
  // Gives the memory of the KV cache back until the next rollout. Local.
  void release_cache() { engine_->release(); }
  // Bytes of KV cache that start() granted to this rank.
  int64_t kv_bytes() const { return kv_bytes_; }
  // Threads that worked in the last rollout(); 0: it was too short to say.
  int threads_worked() const { return meter_.worked(); }
  std::vector<std::string> describe() const { return engine_->describe(); }
  std::vector<std::string> differences_from_training() const {
    return engine_->differences_from_training();
  }

  // Takes this replica's share of the batch on: n samples of each of the prompts `mine` of it, in
  // that order, behind what it has to write already. Texts do not depend on which replica writes
  // them, and when. All ranks of the replica alike; `prompts` must live on.
  void begin(const data::PromptSet& prompts, const PromptBatch& batch, const SamplingPlan& plan,
             std::span<const size_t> mine);
  // The same of sequences that a generator has written a part of, as standing() gave them.
  void go_on(const data::PromptSet& prompts, const Samples& unfinished, int64_t number,
             const SamplingPlan& plan);
  // One token of each running sequence, and accepted guesses after it. What is finished, on the
  // replica's first rank. Collective over the replica.
  std::vector<Finished> step();
  // Around a stretch of steps; `step` counts them in what follows. Local.
  void begin_stretch();
  void end_stretch();
  // The most urgent pace of the ranks of the replica before `step`. Collective over the replica in
  // some of the steps, the same on all of its ranks.
  Pace agree(Pace mine, int64_t step) const;
  // Leaves the groups with an unfinished answer of so many tokens; they, on the replica's first
  // rank. Collective in the same steps.
  std::vector<uint64_t> leave_longer(int64_t longest, int64_t step);
  bool idle() const { return engine_->idle(); }
  // Whether something of the batch is to be written.
  bool writes(int64_t number) const { return unfinished_.contains(number); }
  // Tokens that this replica has to write yet, where answers are as long as expected. Local.
  int64_t outstanding(const generate::AnswerLengths& expected) const;
  // Unfinished sequences of a batch, in id order, on the replica's first rank; nothing on its
  // others.
  Samples standing(int64_t number) const;
  // As the engine's.
  std::vector<uint64_t> queue() const { return engine_->queue(); }
  void arrange(std::span<const uint64_t> order) { engine_->arrange(order); }
  void begin_anew() { engine_->begin_anew(); }
  // So many tokens of finished answers are dropped, too: they count as what it has left of
  // unfinished ones does. Local.
  void count_dropped(int64_t tokens) { dropped_ += tokens; }

 private:
  void submit(const data::PromptSet& prompts, int64_t row, int64_t number,
              generate::Request request);
  generate::Request make_request(const data::PromptRecord& prompt, uint64_t id,
                                 const SamplingPlan& plan) const;

  config::Options options_;
  const comm::Roles& roles_;
  text::Tokenizer tokenizer_;
  text::Stops stops_;
  std::vector<TokenBias> biases_;
  model::ModelSpec spec_;
  machine::Threads threads_;
  machine::ThreadMeter meter_;
  int64_t kv_bytes_ = 0;
  GeneratorWork reported_;  // of the work, so far
  double stepping_ = 0;     // seconds in steps
  int64_t dropped_ = 0;     // tokens
  trace::Gauge running_{"sequences running"};
  trace::Gauge waiting_{"sequences waiting"};
  generate::GeneratorWeights weights_;
  std::unique_ptr<generate::Engine> engine_;
  struct Writing {
    const data::PromptSet* prompts;
    int64_t row;
    int64_t number;  // of the batch
    bool truncated;  // drawn under top-p or top-k
  };
  // It is not under way any more.
  Writing take_out(uint64_t id);
  std::unordered_map<uint64_t, Writing> writing_;    // by id
  std::unordered_map<int64_t, int64_t> unfinished_;  // sequences by batch
};

int64_t mean_prompt_tokens(const data::PromptSet& prompts);

}  // namespace trireme::rollout
