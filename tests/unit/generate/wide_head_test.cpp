// Logits in fp32 from a bf16 model (model.head_dtype): what both backends give beside the trainer's
// log-probs of the same tokens.
#include "torch/torch.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "tiny_model.hpp"

namespace trireme::test {
namespace {

using generate::BackendKind;

// Mean distance of a rollout's log-probs from those that full forward passes give.
double mean_distance(const Results& results, const model::ModelSpec& spec,
                     const generate::GeneratorWeights& weights) {
  double sum = 0;
  int64_t count = 0;
  for (const auto& [id, result] : results) {
    std::vector<int32_t> ids =
        tiny_prompt(5 + 9 * static_cast<int64_t>(id % 5), id % 5, spec.shape.vocab);
    const size_t prompt = ids.size();
    ids.insert(ids.end(), result.output_ids.begin(), result.output_ids.end());
    const auto want = full_log_probs(spec, weights, ids, 1);
    for (size_t i = 0; i < result.log_probs.size(); ++i)
      sum += std::abs(double{result.log_probs[i]} - double{want[prompt + i - 1]});
    count += std::ssize(result.log_probs);
  }
  return sum / static_cast<double>(count);
}

TEST(WideHead, BothBackendsGiveTheTrainersLogProbs) {
  constexpr int64_t vocab = 5000;  // more than a piece of it
  const auto narrow = tiny_spec(vocab, true);
  auto wide = narrow;
  wide.head_type = config::HeadType::fp32;
  const auto weights = tiny_weights(narrow, config::DType::bf16);
  for (const auto backend : {BackendKind::fused, BackendKind::torch}) {
    generate::EngineOptions options;
    options.kv_bytes = int64_t{8} << 20;
    options.threads = 1;
    options.backend = backend;
    generate::Engine engine(wide, weights, options);
    const Results results = run_all(engine, test::mixed_requests(vocab));
    const double mean = mean_distance(results, wide, weights),
                 rounded = mean_distance(results, narrow, weights);
    EXPECT_LT(mean, backend == BackendKind::fused ? 1e-3 : 1e-2);
    EXPECT_GT(rounded, backend == BackendKind::fused ? 2 * mean + 1e-3 : mean)
        << "each logit rounded to bf16";
  }
}

}  // namespace
}  // namespace trireme::test
