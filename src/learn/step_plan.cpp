#include "torch/torch.hpp"

#include "trireme/learn/step_plan.hpp"

#include <algorithm>
#include <utility>

#include "trireme/trace/region.hpp"

namespace trireme::learn {

EpochPlan plan_epoch(const config::Options& options, const SequenceList& sequences, int trainers,
                     int64_t iteration, int64_t epoch) {
  ppo::PlanInput input{
      .lengths = lengths_of(sequences),
      .owner = {},
      .ranks = trainers,
      .batch_size = options.train.batch_size,
      .micro_batch_tokens = options.train.micro_batch_tokens,
      .seed = static_cast<uint64_t>(options.run.seed),
      .shuffle = static_cast<uint64_t>((iteration - 1) * options.train.max_epochs + epoch)};
  std::vector<int> owner(sequences.size(), 0);
  for (const ppo::OptimizerStep& step : ppo::plan_epoch(input)) {
    for (size_t rank = 0; rank < step.micro_batches.size(); ++rank) {
      for (const auto& bin : step.micro_batches[rank]) {
        for (const int64_t sequence : bin)
          owner[static_cast<size_t>(sequence)] = static_cast<int>(rank);
      }
    }
  }
  input.owner = owner;
  return {std::move(owner), ppo::plan_epoch(input)};
}

ppo::Experience hand_over(const ppo::Experience& mine, const SequenceList& sequences,
                          const std::vector<int>& owner, const comm::CommView& trainers) {
  auto out = ppo::Experience::from(Exchange(trainers).move(mine.to_samples(), sequences, owner));
  fill_if_empty(out);
  return out;
}

void count_balance(const ppo::OptimizerStep& step, const SequenceList& sequences) {
  int64_t all = 0, fullest = 0;
  for (const ppo::Bins& of_rank : step.micro_batches) {
    int64_t tokens = 0;
    for (const auto& bin : of_rank) {
      for (const int64_t sequence : bin) tokens += sequences[static_cast<size_t>(sequence)].tokens;
    }
    all += tokens;
    fullest = std::max(fullest, tokens);
  }
  trace::count("step_tokens", all);
  trace::count("step_tokens_if_full", fullest * std::ssize(step.micro_batches));
}

void fill_if_empty(ppo::Experience& experience) {
  if (experience.sequences() > 0) return;
  for (at::Tensor* column :
       {&experience.old_log_probs, &experience.values, &experience.advantages, &experience.returns})
    *column = at::zeros({0}, at::kFloat);
}

}  // namespace trireme::learn
