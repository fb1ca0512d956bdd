// How well the generator's log-probs agree with the trainer's: measured, or used.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trireme/base/samples.hpp"
#include "trireme/comm/comm.hpp"
#include "trireme/config/model_shape.hpp"
#include "trireme/config/options.hpp"
#include "trireme/learn/scoring.hpp"
#include "trireme/ppo/experience.hpp"
#include "trireme/zero/sharded_model.hpp"

namespace trireme::learn {

// With d = log pi_train - log pi_rollout of the sampled tokens that were compared, on all trainers.
struct Mismatch {
  double max = 0;   // of |d|
  double mean = 0;  // of |d|
  double p999 = 0;  // 99.9th percentile of |d|: the smallest value that at least 99.9 % of the
                    // tokens do not exceed
  double kl =
      0;  // of rollout to training policy: mean of exp(d) - 1 - d (Schulman's k3), never negative
  double tokens = 0;
};

// `log_probs` f32 [T] are the trainer's for the tokens of `samples`; action tokens count.
// Collective over `ranks`.
Mismatch compare_log_probs(const Samples& samples, const at::Tensor& log_probs,
                           const comm::CommView& ranks);

// The smallest of all ranks' values (>= 0) that at least `share` of them do not exceed; 0 where
// there are none. Exact, by counts of the values' leading bits: three sums over the ranks, whatever
// their number. Collective over `ranks`.
float quantile(std::span<const float> values, double share, const comm::CommView& ranks);

// Where old log-probs come from: a forward pass, or the rollout itself while its log-probs are
// those of the trainer bit for bit (train.old_log_probs).
class OldLogProbs {
 public:
  // `differences`: why bits may differ, from bit_differences(); the same on every trainer.
  OldLogProbs(const config::Options& options, const std::vector<std::string>& differences);

  // Sets experience.old_log_probs. `version` is that of the actor's weights, -1 when unknown.
  // Without the pass, some sequences of each rank are computed all the same and compared; the first
  // difference is reported, and from then on the pass is made. Where the pass was left,
  // experience.old_log_probs is undefined. Collective over pass.ranks, the trainers.
  Mismatch evaluate(ppo::Experience& experience, zero::ShardedModel& actor, const comm::Pass& pass,
                    int64_t version, double temperature, at::Device device);

  // One line for the log.
  std::string describe() const { return description_; }

 private:
  // Compares a sample of the sequences with the trainer's own log-probs. Collective.
  Mismatch check(const ppo::Experience& experience, zero::ShardedModel& actor,
                 const comm::CommView& ranks, int64_t version, double temperature,
                 at::Device device) const;

  int64_t micro_batch_tokens_;
  bool trusted_;
  std::string description_;
};

// How this rank's training products of the model's shapes add on a CPU, found by experiment
// (kernels/decode_gemm.hpp) with the current number of LibTorch's threads; `logits` is the type of
// the head's. Ranks whose texts are equal compute the same bits.
std::string summation_orders(const config::ModelShape& shape, config::DType type,
                             config::DType logits);

// What generators on any rank say against equal bits (generate::Engine::differences_from_training),
// each reason once, and one more when ranks that train or generate add in different orders
// (`orders`: summation_orders(), empty on ranks that do neither). The same on every rank.
// Collective over world; `mine` is empty on ranks without the role.
std::vector<std::string> bit_differences(const comm::CommView& world,
                                         const std::vector<std::string>& mine,
                                         const std::string& orders);

}  // namespace trireme::learn
