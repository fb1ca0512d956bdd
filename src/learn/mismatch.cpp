#include "torch/torch.hpp"

#include "trireme/learn/mismatch.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <set>

#include "trireme/base/log.hpp"
#include "trireme/base/text.hpp"
#include "trireme/kernels/decode_gemm.hpp"
#include "trireme/kernels/log_sum_exp.hpp"
#include "trireme/learn/scoring.hpp"

namespace trireme::learn {
namespace {

constexpr int64_t checked_sequences = 2;  // per rank and iteration

// Every action token was drawn from the weights `version`.
bool drawn_from(const Samples& samples, int64_t version) {
  for (size_t t = 0; t < samples.ids.size(); ++t) {
    if (samples.action_mask[t] && samples.version[t] != version) return false;
  }
  return true;
}

}  // namespace

float quantile(std::span<const float> values, double share, const comm::CommView& ranks) {
  const auto total = static_cast<double>(ranks.sum(static_cast<int64_t>(values.size())));
  if (total == 0) return 0;
  auto left = static_cast<int64_t>(
      std::max(1.0, std::ceil(share * total)));  // the left-th smallest is wanted
  uint32_t prefix =
      0;  // leading bits of the answer: of floats >= 0 they are in the order of the values
  for (const auto& [shift, bits] : {std::pair{21, 11}, {10, 11}, {0, 10}}) {
    std::vector<int64_t> counts(size_t{1} << bits, 0);
    for (const float value : values) {
      const uint64_t word = std::bit_cast<uint32_t>(value);
      if (word >> (shift + bits) == uint64_t{prefix} >> (shift + bits))
        ++counts[(word >> shift) & (counts.size() - 1)];
    }
    ranks.all_reduce(counts.data(), static_cast<int64_t>(counts.size()), comm::DType::i64,
                     comm::Op::sum);
    uint32_t digit = 0;
    while (left > counts[digit]) left -= counts[digit++];
    prefix |= digit << shift;
  }
  return std::bit_cast<float>(prefix);
}

Mismatch compare_log_probs(const Samples& samples, const at::Tensor& log_probs,
                           const comm::CommView& ranks) {
  std::vector<float> distances;
  std::array<double, 3> sums{};  // |d|, exp(d) - 1 - d, tokens
  double largest = 0;
  const auto* mine = log_probs.const_data_ptr<float>();
  for (size_t t = 0; t < samples.ids.size(); ++t) {
    if (!samples.action_mask[t]) continue;
    const double d = double{mine[t]} - double{samples.log_probs[t]};
    const double distance = std::isnan(d) ? std::numeric_limits<double>::infinity() : std::abs(d);
    distances.push_back(static_cast<float>(distance));
    largest = std::max(largest, distance);
    sums[0] += distance;
    sums[1] += std::expm1(d) - d;
    sums[2] += 1;
  }
  ranks.all_reduce(sums.data(), static_cast<int64_t>(sums.size()), comm::DType::f64, comm::Op::sum);
  Mismatch out;
  out.max = ranks.max(largest);
  out.p999 = double{quantile(distances, 0.999, ranks)};
  out.tokens = sums[2];
  if (out.tokens > 0) {
    out.mean = sums[0] / out.tokens;
    out.kl = sums[1] / out.tokens;
  }
  return out;
}

OldLogProbs::OldLogProbs(const config::Options& options,
                         const std::vector<std::string>& differences)
    : micro_batch_tokens_(options.rollout_micro_batch_tokens()),
      trusted_(options.train.old_log_probs == config::OldLogProbs::automatic &&
               differences.empty()) {
  if (!differences.empty()) {
    description_ =
        base::text("rollout and training log-probs may differ: ", base::join(differences, "; "),
                   "; old log-probs are computed");
  } else if (trusted_) {
    description_ =
        base::text("old log-probs: those of the rollout, bit for bit the trainer's; ",
                   checked_sequences, " sequences per rank are checked in every iteration");
  } else {
    description_ = "old log-probs: computed in every iteration (train.old_log_probs = \"always\")";
  }
}

Mismatch OldLogProbs::check(const ppo::Experience& experience, zero::ShardedModel& actor,
                            const comm::CommView& ranks, int64_t version, double temperature,
                            at::Device device) const {
  const int64_t sequences = experience.sequences();
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < std::min(checked_sequences, sequences); ++i) {
    rows.push_back((version * checked_sequences + i) % sequences);  // others in each iteration
  }
  const Samples sample = experience.samples.select(rows);
  return compare_log_probs(
      sample, action_log_probs(actor, sample, {ranks, micro_batch_tokens_, device}, temperature),
      ranks);
}

Mismatch OldLogProbs::evaluate(ppo::Experience& experience, zero::ShardedModel& actor,
                               const comm::Pass& pass, int64_t version, double temperature,
                               at::Device device) {
  const comm::CommView& ranks = pass.ranks;
  const bool here = trusted_ && version >= 0 && drawn_from(experience.samples, version);
  if (ranks.min(static_cast<int64_t>(here)) == 1) {
    const Mismatch mismatch = check(experience, actor, ranks, version, temperature, device);
    if (mismatch.max == 0) {
      experience.old_log_probs = experience.rollout_log_probs.clone();
      return mismatch;
    }
    trusted_ = false;
    if (ranks.rank() == 0) {
      log::warning(
          base::text("rollout log-probs are not those of the trainer, although the self-test at "
                     "the start found no ",
                     "difference: up to ", mismatch.max, " on ", mismatch.tokens,
                     " tokens of a sample; from now on they are computed"));
    }
  }
  experience.old_log_probs =
      action_log_probs(actor, experience.samples, {pass, micro_batch_tokens_, device}, temperature);
  if (!experience.old_log_probs.defined()) return {};
  return compare_log_probs(experience.samples, experience.old_log_probs, ranks);
}

std::string summation_orders(const config::ModelShape& shape, config::DType type,
                             config::DType logits) {
  const int64_t q = shape.heads * shape.head_dim, kv = shape.kv_heads * shape.head_dim;
  const int64_t head = std::min(shape.vocab, kernels::vocabulary_chunk);
  const std::tuple<int64_t, int64_t, config::DType> layers[] = {
      {shape.hidden, q, type},         {shape.hidden, kv, type},
      {q, shape.hidden, type},         {shape.hidden, shape.ffn, type},
      {shape.ffn, shape.hidden, type}, {shape.hidden, head, logits}};
  std::string text;
  for (const auto& [k, n, of] : layers) {
    text += (text.empty() ? "" : "; ") + kernels::describe(of, k, n, kernels::find_order(of, k, n));
  }
  return text;
}

std::vector<std::string> bit_differences(const comm::CommView& world,
                                         const std::vector<std::string>& mine,
                                         const std::string& orders) {
  const auto reasons = world.all_gather<std::string>(mine);
  std::set<std::string> all(reasons.begin(), reasons.end());
  const auto by_rank = world.all_gather(orders);
  const auto first =
      std::ranges::find_if(by_rank, [](const std::string& text) { return !text.empty(); });
  const auto other = std::ranges::find_if(
      by_rank, [&](const std::string& text) { return !text.empty() && text != *first; });
  if (other != by_rank.end()) {
    all.insert(base::text("ranks ", first - by_rank.begin(), " and ", other - by_rank.begin(),
                          " add in different orders (their processors differ)"));
  }
  return {all.begin(), all.end()};
}

}  // namespace trireme::learn
