// The state of a run: everything but models that an iteration changes, and its checkpoint text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/data/sampler.hpp"
#include "trireme/learn/inputs.hpp"
#include "trireme/learn/training_state.hpp"
#include "trireme/rollout/group_buffer.hpp"

namespace trireme::driver {

// The checkpoint with the best value of ckpt.best_metric.
struct BestCheckpoint {
  std::string metric;  // empty: none yet
  int64_t iteration = -1;
  double value = 0;
  bool operator==(const BestCheckpoint&) const = default;
};

// `phase` of a checkpoint that lies between two iterations, and inside one: behind its rollout,
// between two of its optimizer steps, behind the last of them.
namespace phase {
inline constexpr const char* between = "iteration";
inline constexpr const char* reward = "reward";
inline constexpr const char* train = "train";
inline constexpr const char* evaluate = "evaluate";
}  // namespace phase

// The figures of an iteration by which a run is judged; none: not computed.
struct Outcome {
  std::optional<double> curve = {};  // mean reward (ppo) or loss
  std::optional<double> kl = {};
  std::optional<double> entropy = {};
  std::optional<double> judged = {};  // ckpt.best_metric of its evaluation; not stored
  bool operator==(const Outcome&) const = default;
};

struct RunState {
  int64_t iteration = 0;  // finished iterations
  std::string phase = driver::phase::between;
  int64_t mini_batch = 0;  // optimizer steps of that iteration that are done
  int64_t version = 0;     // of the weights: one per weight sync
  learn::TrainingState training;
  int64_t schedule_steps = 0;   // length of the learning-rate schedules, fixed at the start
  int64_t metrics_cursor = 0;   // bytes of metrics.jsonl
  int64_t skipped_prompts = 0;  // by dynamic filtering
  rollout::FilterState filter;
  int64_t pending_bytes = 0;  // of rollouts for the next iterations (train.async_depth, a surplus
                              // of dynamic filtering, or a stop behind one)
  int64_t unfinished_bytes = 0;  // of the iteration that a stop interrupted
  int64_t dispatch_bytes = 0;    // of what generators remember: lengths of answers, who writes what
  std::vector<rollout::CarriedPrompt>
      carried;  // drawn and not learned from yet (rollout.over_sampling); ascending
  data::SamplerState sampler;
  data::SamplerState ptx_sampler;  // of data.pretrain_dataset
  BestCheckpoint best;
  Outcome outcome;              // of the iteration at work
  std::vector<double> rewards;  // of each iteration, for the plot
  std::string command;          // ppo, sft, rm or dpo
  std::string deck;             // complete TOML
  learn::Inputs inputs;         // empty in checkpoints from before they were stored
  std::string resumed_from;  // the checkpoint that ckpt.resume named and an earlier start obeyed;
                             // empty: none
  std::string compute_type;  // "fp32" or "bf16"; empty in checkpoints from before it was stored
  std::string date;          // of chat templates, YYYY-MM-DD; empty as above
  bool operator==(const RunState&) const = default;

  bool inside_iteration() const { return phase != driver::phase::between; }
  // The number of its checkpoint: the iteration that it lies behind or inside.
  int64_t checkpoint_step() const { return iteration + inside_iteration(); }
};

std::string to_json(const RunState& state);
// Throws checkpoint::Mismatch when a field is missing or malformed.
RunState run_state_from_json(const std::string& text);

}  // namespace trireme::driver
