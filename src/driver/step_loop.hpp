// Supervised pipelines (sft, rm, dpo): every rank is a trainer; an iteration is one optimizer step.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "driver/run.hpp"
#include "driver/run_control.hpp"
#include "trireme/data/sampler.hpp"
#include "trireme/learn/bad_batches.hpp"
#include "trireme/learn/model_start.hpp"
#include "trireme/learn/objective.hpp"
#include "trireme/learn/skipped_steps.hpp"
#include "trireme/learn/training_set.hpp"
#include "trireme/text/tokenizer.hpp"
#include "trireme/zero/schedule.hpp"
#include "trireme/zero/sharded_model.hpp"

namespace trireme::driver {

class StepLoop {
 public:
  // Collective over world.
  StepLoop(const config::Options& options, const comm::Session& session, config::Command command);
  StepLoop(const StepLoop&) = delete;
  // Collective.
  ExitCode run();

 private:
  // Where the run stands: at a checkpoint, or before its first iteration.
  RunState resume_or_start();
  // Makes the device current; loads the reference of dpo. Collective over the trainers.
  std::unique_ptr<learn::Objective> make_objective();
  std::unique_ptr<zero::ShardedModel> make_model() const;
  void add_thread_metrics(int worked, report::IterationMetrics& metrics) const;  // collective
  // Gradients of the loss on these rows, and the optimizer step.
  Outcome train(const std::vector<int64_t>& rows, report::IterationMetrics& metrics);
  // The same loss and metrics on the held-out rows, names with "eval_" in front.
  void evaluate_held_out(report::IterationMetrics& metrics);
  void export_trained(const std::string& name);

  Run run_;
  text::Tokenizer tokenizer_;
  learn::TrainingSet rows_;
  data::PromptSampler sampler_;
  learn::ModelStart start_;
  std::shared_ptr<const model::KeptFiles> kept_files_;  // for exports
  int64_t iterations_;                                  // of the whole run
  std::optional<learn::TrainingSet> held_out_;
  const zero::ShardedModel* reference_ = nullptr;  // the objective's, where it has one
  std::unique_ptr<learn::Objective> objective_;
  std::unique_ptr<zero::ShardedModel> model_;
  std::unique_ptr<zero::LearningRate> rate_;
  learn::BadBatches bad_batches_{run_.folder.path(), run_.roles.world.rank()};
  learn::SkippedSteps skips_{run_.options.train.max_skipped_steps};
  // rm: mean and deviation of the held-out rewards, and the iteration whose weights gave them
  struct RewardScale {
    int64_t iteration = -1;
    double mean = 0;
    double deviation = 1;
  } reward_scale_;
  int64_t finished_ = 0;  // iterations
  RunControl control_;    // last: it saves what stands above
};

}  // namespace trireme::driver
