// The log-probs of the frozen reference, as the reward role computes them, against OpenRLHF's at
// the same temperature: without it the KL to the reference would not be 0 at the start.
#include "torch/torch.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <vector>

#include "parity/golden_rows.hpp"
#include "parity/ranks.hpp"
#include "parity/site.hpp"
#include "support/golden.hpp"
#include "trireme/comm/roles.hpp"
#include "trireme/model/model_files.hpp"
#include "trireme/reward/scorer.hpp"

namespace trireme::test {
namespace {

using at::Tensor;

// Any tokenizer and any texts: the reference reads ids.
text::Tokenizer some_tokenizer() {
  return text::Tokenizer::load(Golden::folder() / "tokenizers" / "bytelevel");
}

data::PromptSet some_prompts(const text::Tokenizer& tokenizer) {
  data::SetOptions options;
  options.files = {Golden::folder() / "tokenizers" / "bytelevel" / "encode.jsonl"};
  options.keys.prompt = "text";
  return data::PromptSet::load(options, tokenizer);
}

Tensor reference_log_probs(const GoldenCase& c, GoldenRows& rows) {
  config::Options options;
  options.model.dtype = config::ComputeType::fp32;
  options.rollout.temperature = c.number("temperature").value();
  options.train.micro_batch_tokens = 30;
  const auto roles = comm::make_roles(options, world());
  const auto tokenizer = some_tokenizer();
  reward::Scorer scorer(options, {roles.rewards.all(), roles.rings}, tokenizer, {}, at::kCPU);
  const auto spec =
      model::describe(model::open_model(model_path(c)).shape, model::HeadKind::language);
  scorer.add_reference(spec, golden_reader(c, spec));
  Samples& samples = rows.samples();
  // In waves of any size, as sequences come: each in one of them.
  const auto prompts = some_prompts(tokenizer);
  const int64_t waves = std::max<int64_t>(1, world().max(samples.size() / 2));
  for (int64_t wave = 1; wave < waves; ++wave) {
    std::vector<int64_t> some;
    for (int64_t i = wave; i < samples.size(); i += waves) some.push_back(i);
    scorer.refer(samples.select(some));
    for (const int64_t i : some) EXPECT_TRUE(scorer.knows(samples.id[static_cast<size_t>(i)]));
  }
  scorer.score_with_models(samples, prompts, 1);  // the rest
  scorer.fill_in(samples);
  for (const uint64_t id : samples.id) EXPECT_FALSE(scorer.knows(id)) << "kept for nothing";
  Samples at_once = rows.samples();
  at_once.ref_log_probs.clear();
  scorer.score_with_models(at_once, prompts, 1);
  scorer.fill_in(at_once);
  EXPECT_EQ(at_once.ref_log_probs, samples.ref_log_probs)
      << "bit for bit, whatever it is packed with";
  return at::tensor(samples.ref_log_probs);
}

using Reference = AtSite;

TEST_F(Reference, LogProbsAtTheTemperatureOfTheRollout) {
  std::set<double> temperatures;
  for (const GoldenCase& c : Golden::instance().all()) {
    if (c.name.find(".forward.") == std::string::npos) continue;
    GoldenRows rows(c);
    const Tensor mask = c.input("action_mask");
    rows.set_action_mask(mask);
    const Tensor targets = rows.targets(reference_log_probs(c, rows));
    EXPECT_TRUE(c.matches("action_log_probs",
                          targets.narrow(1, targets.size(1) - mask.size(1), mask.size(1))));
    temperatures.insert(c.number("temperature").value());
  }
  if (!std::getenv("TRIREME_PARITY_DIR")) { EXPECT_GT(temperatures.size(), 1u); }
}

}  // namespace
}  // namespace trireme::test
