// Both executors' draws under top-k, top-p, min-p and a repetition penalty, against what the logits
// processors of transformers leave (tests/gold/sampling, make_sampling.py).
#include "torch/torch.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <vector>

#include "generate/sampler.hpp"
#include "generate/tensor_sampler.hpp"
#include "generate/upload.hpp"
#include "support/source_folder.hpp"
#include "support/world.hpp"

namespace trireme::test {
namespace {

using namespace generate;

struct ProcessorCase {
  SamplingParams sampling;
  std::vector<int32_t> seen;
  std::vector<float> logits;
  std::map<int32_t, double> log_probs;  // of the ids that may be drawn
};

constexpr int64_t vocabulary = 96;

std::vector<ProcessorCase> processor_cases() {
  std::ifstream file(source_folder() / "tests" / "gold" / "sampling" / "processors.txt");
  std::vector<ProcessorCase> out;
  for (ProcessorCase c; file >> c.sampling.temperature; c = {}) {
    SamplingParams& p = c.sampling;
    size_t count = 0;
    file >> p.top_k >> p.top_p >> p.min_p >> p.repetition_penalty >> count;
    std::vector<int32_t> ids(count);
    for (int32_t& id : ids) file >> id;
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    if (p.repetition_penalty != 1) c.seen = ids;
    c.logits.resize(vocabulary);
    for (float& logit : c.logits) file >> logit;
    file >> count;
    for (size_t i = 0; i < count; ++i) {
      int32_t id = 0;
      file >> id;
      file >> c.log_probs[id];
    }
    p.seed = 11;
    out.push_back(c);
  }
  return out;
}

std::vector<DrawRequest> requests_of(const ProcessorCase& c, int64_t draws) {
  std::vector<DrawRequest> out;
  for (int64_t i = 0; i < draws; ++i) {
    out.push_back({0, nullptr, &c.sampling, 5, static_cast<uint32_t>(i), {}, c.seen});
  }
  return out;
}

void expect_draws(const ProcessorCase& c, const std::vector<Drawn>& drawn, const char* executor,
                  size_t number) {
  std::map<int32_t, double> share;
  for (const Drawn& one : drawn) {
    ASSERT_TRUE(c.log_probs.contains(one.id)) << executor << " case " << number << " id " << one.id;
    share[one.id] += 1.0 / static_cast<double>(drawn.size());
    if (one.sample_log_prob) {
      EXPECT_NEAR(double{*one.sample_log_prob}, c.log_probs.at(one.id), 2e-5)
          << executor << " case " << number << " id " << one.id;
    }
    double total = 0;  // of the logits as they are
    for (const float logit : c.logits) total += std::exp(double{logit} / c.sampling.temperature);
    EXPECT_NEAR(
        double{one.log_prob},
        double{c.logits[static_cast<size_t>(one.id)]} / c.sampling.temperature - std::log(total),
        2e-5);
  }
  for (const auto& [id, log_prob] : c.log_probs)
    EXPECT_NEAR(share[id], std::exp(log_prob), 0.06) << executor << " case " << number;
}

TEST(Processors, BothExecutorsDrawWhatTransformersLeaves) {
  const auto cases = processor_cases();
  ASSERT_EQ(cases.size(), 12u);
  constexpr int64_t draws = 600;
  for (size_t number = 0; number < cases.size(); ++number) {
    const ProcessorCase& c = cases[number];
    const auto requests = requests_of(c, draws);
    ThreadTeam team(1);
    Sampler sampler(vocabulary, 0, team, world());
    const kernels::LogitsRow row{kernels::ElementType::f32, c.logits.data(), vocabulary};
    expect_draws(c, sampler.draw(requests, std::vector<kernels::LogitsRow>(draws, row)), "fused",
                 number);

    TensorSampler on_tensors(kernels::ElementType::f32, {0, vocabulary}, 0, at::kCPU,
                             kernels::draws_on_host, nullptr);
    Upload upload;
    on_tensors.plan(requests, upload);
    upload.send(at::kCPU);
    expect_draws(c, on_tensors.draw(at::tensor(c.logits).view({1, vocabulary}), upload), "torch",
                 number);
  }
}

}  // namespace
}  // namespace trireme::test
