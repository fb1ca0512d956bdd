// Metrics of an iteration that follow from samples and updates. Everything here is
// collective over the communicator that it takes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/samples.hpp"
#include "trireme/comm/comm.hpp"
#include "trireme/config/options.hpp"
#include "trireme/learn/learning.hpp"
#include "trireme/report/iteration_metrics.hpp"

namespace trireme::learn {

using report::IterationMetrics;

// Collective over ranks.
void sum_over(const comm::CommView& ranks, std::vector<double>& values);

// reward, its parts, named metrics of reward sources, response_length, truncated share,
// response_clip_ratio (share of sequences of `max_len` tokens), spread of rewards and lengths,
// share of groups without spread, tokens, of samples that lie on any ranks. `parts` names the
// reward sources. The mean reward. Collective over world; memory of every rank: 24 bytes per
// sequence.
double add_rollout_metrics(const comm::CommView& world, const Samples& samples,
                           const std::vector<std::string>& parts, int64_t max_len,
                           IterationMetrics& metrics);

// `kl_coefficient` of this iteration, `kl` as Trainer::kl_to_reference() has it, losses,
// clip_ratio, mismatch, norms and rates, mean and deviation of the advantages, explained variance
// of the returns. Sums of `learning.update` are averaged already. Collective over the trainers.
void add_training_metrics(const config::Options& options, const comm::CommView& trainers,
                          double kl_coefficient, const Learning& learning,
                          const std::optional<double>& kl, IterationMetrics& metrics);

// eval_reward (mean), eval_pass1 and eval_pass<n>: mean share of samples, and share of prompts with
// any sample, whose reward is above 0.5; eval_reward_<source>/<name>, named metrics of sources.
void add_evaluation_metrics(const comm::CommView& world, const Samples& samples, int64_t n,
                            IterationMetrics& metrics);

// Nothing with `depth` 0; else, by how many versions of the weights the tokens were older than
// `version`, that the trainers have: the mean, and the share of each age up to `depth` and above.
// Collective over `world`.
void add_staleness(const comm::CommView& world, const Samples& samples, int64_t version,
                   int64_t depth, IterationMetrics& metrics);

// Groups whose mean reward lies strictly inside `range`, in the order of their prompts. Collective
// over world.
std::vector<uint64_t> informative_groups(const comm::CommView& world, const Samples& samples,
                                         const config::Range& range);

}  // namespace trireme::learn
