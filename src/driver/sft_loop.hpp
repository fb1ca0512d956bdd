// Supervised fine-tuning: every rank is a trainer; an iteration is one optimizer step.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "driver/checkpointing.hpp"
#include "driver/metrics.hpp"
#include "driver/models.hpp"
#include "driver/progress.hpp"
#include "driver/roles.hpp"
#include "driver/run_context.hpp"
#include "driver/run_folder.hpp"
#include "trireme/base/samples.hpp"
#include "trireme/data/prompt_set.hpp"
#include "trireme/data/sampler.hpp"
#include "trireme/trace/region.hpp"
#include "trireme/zero/schedule.hpp"
#include "trireme/zero/sharded_model.hpp"

namespace trireme::driver {

class SftLoop {
 public:
  // Collective over world.
  SftLoop(const config::Options& options, const comm::Session& session);
  // Collective.
  ExitCode run();

 private:
  Progress resume_or_start();
  // This rank's share of the rows, as samples whose action mask is the loss mask.
  Samples share_of(const std::vector<int64_t>& rows) const;
  void step(const Samples& mine, IterationMetrics& metrics);
  void report(IterationMetrics& metrics, double seconds);
  void save(bool wait);
  ExitCode finish();

  std::optional<trace::Phase> starting_{std::in_place, trace::Name{"start"}};  // until the first iteration
  config::Options options_;
  const comm::Session& session_;
  Roles roles_;
  RunFolder folder_;
  RunContext context_;
  ThreadPlan threads_;
  at::Device device_;
  data::Tokenizer tokenizer_;
  data::SftSet examples_;
  data::PromptSampler sampler_;
  ModelStart start_;
  int64_t iterations_;
  std::unique_ptr<zero::ShardedModel> model_;
  std::unique_ptr<zero::LearningRate> rate_;
  std::unique_ptr<Checkpointing> checkpoint_;
  std::unique_ptr<MetricsFile> metrics_file_;  // on rank 0
  Progress progress_;
  IterationMetrics last_;
};

}  // namespace trireme::driver
