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
#include "trireme/environment/environments.hpp"
#include "trireme/generate/dispatch.hpp"
#include "trireme/generate/engine.hpp"
#include "trireme/generate/weights.hpp"
#include "trireme/machine/compute_resources.hpp"
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

// Counts of a replica's environment.
struct EnvironmentWork {
  environment::Counters programs;
  int64_t begun_again = 0;  // episodes: the environment answered otherwise than before a restart
  int64_t rendered_differently = 0;  // the template gives other tokens of the whole episode
  static constexpr auto fields =
      std::tuple{&EnvironmentWork::programs, &EnvironmentWork::begun_again,
                 &EnvironmentWork::rendered_differently};
};

// The model that a generator samples from.
struct Policy {
  const model::ModelSpec& spec;
  const text::Tokenizer& tokenizer;
  // Where this rank reads the actor's weights in place, one pointer per parameter; empty: the
  // generator has weights of its own.
  const std::vector<const std::byte*>& shared;
};

class Episodes;
struct Move;

class Generator {
 public:
  // Weights only, which are zero until the first sync. start() before anything else.
  // `environments`: those of the deck, on the first rank of a replica; it must live on. Null
  // elsewhere, and where an answer is one turn.
  Generator(const config::Options& options, const comm::Roles& roles, const Policy& policy,
            const machine::ComputeResources& resources,
            environment::Environments* environments = nullptr);
  ~Generator();
  // Makes the engine, once the weights of all roles are there: `kv_memory` is what they left of
  // this rank's memory, of which the KV cache takes its share. Collective over the replica.
  void start(int64_t kv_memory);

  generate::GeneratorWeights& weights() { return weights_; }
  const generate::EngineCounters& counters() const { return engine_->counters(); }
  GeneratorMemory memory() const;
  // Since the last call.
  GeneratorWork take_work();
  EnvironmentWork take_environment_work();
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
  // Takes the environment's answers, then decodes one token of each running sequence and the
  // accepted guesses after it. Returns the finished ones, on the replica's first rank. Collective
  // over the replica.
  std::vector<Finished> step();
  // Takes what the environment has answered; how many answers. A source of progress. Local.
  int64_t poll_environment();
  // The next step has to wait for the environment: nothing else is left to do, or with
  // train.deterministic some answer is missing. Said by the replica's first rank. Local.
  bool must_wait() const;
  // Around a stretch of steps; `step` counts them in what follows. Local.
  void begin_stretch();
  void end_stretch();
  // The most urgent pace of the ranks of the replica before `step`. Collective over the replica in
  // some of the steps, the same on all of its ranks.
  Pace agree(Pace mine, int64_t step) const;
  // Leaves the groups with an unfinished answer of so many tokens; they, on the replica's first
  // rank. Collective in the same steps.
  std::vector<uint64_t> leave_longer(int64_t longest, int64_t step);
  bool idle() const { return engine_->idle() && unanswered_ == 0; }
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
  void begin_anew();
  // So many tokens of finished answers are dropped, too: they count as what it has left of
  // unfinished ones does. Local.
  void count_dropped(int64_t tokens) { dropped_ += tokens; }

 private:
  // A sequence that has to be written.
  struct Writing {
    const data::PromptSet* prompts;
    int64_t row;
    int64_t number;  // of the batch
    SamplingPlan plan = {};
    std::optional<Samples> recorded = {};  // of an episode: a checkpoint's part, until it goes on
    bool waits = false;                    // for the environment
    bool in_engine = false;
    int64_t outside = 0;  // tokens of its answer that the engine does not have
  };
  void begin_one(uint64_t id, Writing writing);
  void submit(uint64_t id, Writing& writing, std::span<const int32_t> prompt,
              generate::Result begun, int64_t turn_begin);
  generate::Request make_request(std::span<const int32_t> prompt, uint64_t id,
                                 const SamplingPlan& plan) const;
  bool truncates(const SamplingPlan& plan) const;
  // Tokens of a sequence.
  int64_t limit() const;
  bool in_turns() const { return options_.environment.wanted(); }
  bool steps_have_all_answers() const;
  // Whether the replica's next step depends on answers; the same on all its ranks.
  bool depends_on_answers() const;
  // Moves of episodes; returns the finished ones, on the first rank. Collective over the replica.
  std::vector<Finished> carry_out_moves();
  void submit_episode(const Move& move, Writing& writing);
  void finish_episode(uint64_t id, std::vector<Finished>& finished);
  void end_turns(generate::StepOutput& output);
  void arrange_episodes();
  void wait_for_answer(uint64_t id);
  Finished finished(generate::Result result, const Writing& writing) const;
  void count_step(const generate::EngineCounters& before) const;

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
  // It is not being written any more.
  Writing take_out(uint64_t id);
  std::unordered_map<uint64_t, Writing> writing_;    // by id
  std::unordered_map<int64_t, int64_t> unfinished_;  // sequences by batch
  environment::Environments* environments_;
  std::unique_ptr<Episodes> episodes_;  // where environments are
  int64_t unanswered_ = 0;              // sequences that wait for it, on all ranks of the replica
};

int64_t mean_prompt_tokens(const data::PromptSet& prompts);

}  // namespace trireme::rollout
