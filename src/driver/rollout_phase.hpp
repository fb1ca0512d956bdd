// The first half of a PPO iteration: generators write, reward ranks score each sequence as soon as
// it is finished, and the samples go to the trainers. Sequences go from rank to rank by mailboxes;
// a batch here is the sequences of one rollout. Batches are learned from in their
// order; generators may be at several of them (train.async_depth).
#pragma once

#include <cstdint>
#include <limits>
#include <list>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <vector>

#include "driver/ppo_roles.hpp"
#include "driver/run.hpp"
#include "trireme/comm/mailbox.hpp"
#include "trireme/comm/progress.hpp"
#include "trireme/data/prompt_set.hpp"
#include "trireme/data/sampler.hpp"
#include "trireme/driver/run_state.hpp"
#include "trireme/learn/exchange.hpp"
#include "trireme/report/iteration_metrics.hpp"
#include "trireme/rollout/dispatch.hpp"
#include "trireme/rollout/group_buffer.hpp"
#include "trireme/rollout/group_news.hpp"
#include "trireme/text/tokenizer.hpp"
#include "trireme/trace/gauge.hpp"

namespace trireme::driver {

// Its methods are collective over world. Mail, steps ahead of the trainers and waves of the
// reference are sources of run.progress.
class RolloutPhase {
 public:
  // Keeps references. `iterations`: of the whole run.
  RolloutPhase(Run& run, PpoRoles& roles, const text::Tokenizer& tokenizer,
               const data::PromptSet& prompts, data::PromptSampler& sampler, int64_t iterations);

  // Scored samples of iteration metrics.iteration, on the reward ranks. nullopt: the run stops;
  // sequences that are all there wait for its next start.
  std::optional<Samples> collect(RunState& state, report::IterationMetrics& metrics);
  // Ahead of the trainers, which learn from this iteration's batch: the next one is written, and
  // scored where no reward rank has to train. With partial rollouts it is begun already, as
  // train.async_depth of them are, and goes on whenever the generators have nothing else to do.
  void work_ahead(int64_t iteration);
  // From the reward ranks, balanced by tokens, and into samples.jsonl.
  learn::Rollout to_trainers(const Samples& samples, int64_t iteration);
  // The same of samples that rank 0 has from a checkpoint.
  learn::Rollout back_to_trainers(const Samples& samples, int64_t iteration);
  // False: the run stops.
  bool evaluate(const data::PromptSet& held_out, report::IterationMetrics& metrics);

  // A stop came before the trainers had scored what collect() gave for this iteration: its texts
  // wait for the next start.
  void take_from_trainers(const Samples& samples, int64_t iteration);
  // Not where the next rollout depends on that one: it has taken groups out of several, or replicas
  // follow a record that has gone on.
  bool can_take_from_trainers() const;
  // The weights of this rank's trainer are changing, until a sync makes them a version: its
  // generator, which may read them in place, writes nothing while it waits. Local.
  void weights_change(bool on) { weights_change_ = on; }
  // Meets all ranks. With partial rollouts a rank that waits writes on.
  void meet();
  // Whether sequences of a rollout under way wait for the next iteration or the next start.
  bool waiting() const { return pending_ || returned_ || !batches_.empty(); }
  // This rank's part of what a checkpoint has of rollouts, and all of it on rank 0 of the next
  // start.
  StoredParts stored();
  void restore(const StoredParts& parts, const RunState& state);
  // Into `state`: prompts that were drawn and are not learned from yet, of the last iteration
  // whose rollout is done; what dynamic filtering has counted.
  void remember(RunState& state) const;

 private:
  // From a generator to a reward rank.
  struct Written {
    int64_t number = 0;  // of the batch
    Samples samples;
    bool left = false;  // its replica has left the rollout, and writes no more
    static constexpr auto fields = std::tuple{&Written::number, &Written::samples, &Written::left};
  };
  // Groups that are written together, or that are scored together.
  struct Batch {
    int64_t number = 0;  // of all batches since the start
    int64_t iteration = 0;
    int64_t n = 1;  // samples of a prompt
    const data::PromptSet* prompts = nullptr;
    std::vector<uint64_t> places = {};  // all its groups, ascending: the reward ranks share them
    std::set<uint64_t> open = {};       // of these: not chosen yet (training)
    int64_t expected = 0;               // sequences that come to this rank
    bool whole = true;  // no replica has left the rollout, as far as this rank has heard
    bool scored = false;
    Samples samples = {};                    // that are here
    int64_t offered = 0;                     // the first so many samples have reference log-probs
    rollout::GroupsOfReplicas writers = {};  // on generators
    std::vector<uint64_t> surplus = {};      // groups that are whole and begin again, ascending
    Samples skipped = {};  // left out since a plugin did not answer (reward.outage): a checkpoint
                           // has them too
    bool complete() const { return samples.size() == expected; }
  };

  rollout::SamplingPlan training_plan() const;
  // Makes a batch, the same on every rank.
  Batch& open(int64_t iteration, std::vector<uint64_t> groups, const data::PromptSet& prompts,
              int64_t n);
  // The batches of a checkpoint, with what is written of them.
  void reopen(const Samples& stored, int64_t iteration);
  // The unfinished sequences of one of them, on generators, which take them on. Collective over
  // these.
  void go_on_with(Batch& batch, const Samples& unfinished);
  // A checkpoint's part, in the first iteration after it.
  void take_back(int64_t iteration);
  // Generators go on as behind a start from a checkpoint. Local.
  void begin_anew();
  // The tasks of this rank's replica, in the order in which it begins them. Collective over the
  // generators.
  std::vector<size_t> hand_out(Batch& batch, const std::vector<rollout::PromptTask>& tasks);
  // How many sequences it has brought.
  int64_t accept(Written written);
  // Takes mail, so that its senders can go on; how many sequences came. Local.
  int64_t take_mail();
  // How long the queues are now, into the trace.
  void show_queues();
  // The reward rank that a sequence of a batch belongs to.
  int scorer_of(uint64_t id, const Batch& batch) const;
  void post(const Samples& sequence, const Batch& batch);
  // Draws the prompts that this iteration wants, and begins what is drawn.
  void draw(int64_t iteration);
  // Opens a batch, which this rank's generator takes on.
  Batch& begin(int64_t iteration, const std::vector<uint64_t>& groups,
               const std::vector<int64_t>& rows, const data::PromptSet& prompts,
               const rollout::SamplingPlan& plan);
  // A token more of each sequence of this replica; sends what is finished. Collective over the
  // replica.
  void step();
  // A stretch of writing: until the replica is idle, the batch is written or so many tokens are
  // generated.
  struct Stretch {
    int64_t batch = -1;
    int64_t tokens = std::numeric_limits<int64_t>::max();
    bool choosing = false;  // it is left as soon as the choice is known
    comm::May may = comm::May::stay;
  };
  // leave: on all ranks of the replica, before its end. Collective over the replica.
  comm::Then write(const Stretch& stretch);
  bool written(const Stretch& stretch) const;
  rollout::Pace pace_of(const Stretch& stretch);
  // Whether the choice of groups is known here.
  bool knows_choice();
  // Where that must not depend on time: while the trainers begin to learn, the replica writes a
  // batch's share of what it has to write yet. Collective over the replica.
  void write_ahead();
  // This rank's share of it.
  void write(Batch& batch, bool may_leave);
  // A training batch, left early when the run stops and nobody is ahead.
  void write(Batch& batch);
  // Tokens that have come and that the reference has not had.
  static int64_t unreferred(const Batch& batch) {
    return batch.samples.tokens() - batch.samples.begin(batch.offered);
  }
  // Takes up to so many of them, of whole sequences.
  Samples take_unreferred(Batch& batch, int64_t tokens);
  // A wave: the reference computes log-probs of sequences while others are missing. Collective over
  // the reward ranks.
  void refer(const Samples& wave);
  // A wave of later iterations: whether there is enough for one, and it.
  bool wave_is_wanted() const;
  void wave_ahead();
  // Waits for the sequences of the batch that come to this rank; those that are there go through
  // the reference in waves. Collective over the reward ranks.
  void receive(Batch& batch);
  // Scores the rest, by models first. False: the run stops, on all reward ranks alike.
  // Collective over the reward ranks.
  bool score(Batch& batch);
  // The batch when it is whole and scored, on the reward ranks, which closes it. nullopt: the run
  // stops.
  std::optional<Samples> finish(Batch& batch);
  // The groups that are scored next, as soon as they are known; generators write meanwhile.
  rollout::GroupBuffer::Choice choose();
  // Of the batches under way the chosen groups as one batch; the others stay under way.
  Batch& gather(const rollout::GroupBuffer::Choice& choice, int64_t iteration);
  // Sequences of these groups of the batch that this reward rank gets.
  int64_t sequences_here(const Batch& batch, std::span<const uint64_t> groups) const;
  // Of the scored samples of these groups those that are worth learning from.
  void keep(Samples samples, const std::vector<uint64_t>& groups);
  // This rank's part of the groups that the iteration learns from; other scored groups wait.
  Samples take(RunState& state, report::IterationMetrics& metrics);
  // `holders`: the ranks that have the samples, this one among them where `holds`.
  learn::Rollout deliver(const Samples& samples, int64_t iteration, const comm::CommView& holders,
                         bool holds);

  Run& run_;
  PpoRoles& roles_;
  const text::Tokenizer& tokenizer_;
  const data::PromptSet& prompts_;
  data::PromptSampler& sampler_;
  int64_t iterations_;
  bool scorers_train_;  // some rank is both reward rank and trainer
  bool waves_;  // this rank's reference begins before all sequences are there; on a GPU bits depend
                // on what is packed together (train.deterministic)
  bool partial_;       // new weights come while sequences are written
  bool paced_;         // how much is written with which weights does not depend on time
                       // (train.deterministic)
  bool stands_still_;  // this rank's replica, while trainers learn: some rank of it is one
  bool weights_change_ = false;
  comm::Mailbox<Written> written_;
  learn::Delivery delivery_;
  std::list<Batch> batches_;                     // under way, in the order of their numbers
  std::vector<Written> early_;                   // of batches that are not open here yet
  int64_t opened_ = 0;                           // batches since the start
  std::optional<learn::StoredSamples> pending_;  // from a checkpoint
  std::optional<Samples>
      returned_;  // this rank's part of the batch that was taken back from the trainers
  Samples
      skipped_;  // this rank's part of what the last batch left out for want of a plugin's answer
  Samples scored_;  // this rank's part of the scored groups that no iteration has learned from
  rollout::Dispatch dispatch_;
  rollout::GroupBuffer groups_;
  std::optional<rollout::GroupNews> news_;  // where the choice depends on what is written
  trace::Gauge under_way_{"finished sequences under way"};  // posted by this rank and not taken yet
  trace::Gauge to_score_{"sequences to score"};             // that are here
  trace::Gauge ahead_{"batches under way"};
};

}  // namespace trireme::driver
