// Greedy texts of transformers' generate on three small models.
#include "torch/torch.hpp"

#include <gtest/gtest.h>

#include "support/golden.hpp"
#include "tiny_model.hpp"
#include "trireme/model/model_files.hpp"

namespace trireme::test {
namespace {

using generate::BackendKind;

struct LoadedModel {
  model::ModelSpec spec;
  generate::GeneratorWeights weights;
};

LoadedModel load(const std::string& folder) {
  const model::ModelFolder files = model::open_model(Golden::folder() / folder);
  model::ModelSpec spec = model::describe(files.shape, model::HeadKind::language);
  generate::GeneratorWeights weights(spec, config::DType::fp32);
  const auto storage = weights.storage();
  for (size_t p = 0; p < storage.size(); ++p) {
    model::load_parameter(spec, p, weights.block(p), *files.weights, 0, reinterpret_cast<float*>(storage[p]));
  }
  return {std::move(spec), std::move(weights)};
}

std::vector<int32_t> ids_of(const at::Tensor& tensor) {
  const at::Tensor t = tensor.to(at::kLong).contiguous();
  return {t.const_data_ptr<int64_t>(), t.const_data_ptr<int64_t>() + t.numel()};
}

at::Tensor as_tensor(const std::vector<int32_t>& ids) {
  return at::tensor(at::ArrayRef<int64_t>(std::vector<int64_t>(ids.begin(), ids.end())));
}

class GoldenGeneration : public testing::TestWithParam<BackendKind> {};

TEST_P(GoldenGeneration, GreedyTextsAndLogProbs) {
  const auto cases = Golden::instance().with_formula("GEN");
  ASSERT_GE(cases.size(), 18u);
  std::map<std::string, std::vector<const GoldenCase*>> by_model;
  for (const GoldenCase* c : cases) by_model[c->word("model").value()].push_back(c);
  for (const auto& [folder, list] : by_model) {
    const LoadedModel m = load(folder);
    generate::EngineOptions o;
    o.kv_bytes = int64_t{4} << 20;
    o.threads = 1;
    o.backend = GetParam();
    generate::Engine engine(m.spec, m.weights, o);
    std::vector<generate::Request> requests;
    for (size_t i = 0; i < list.size(); ++i) {
      for (const bool stop : {false, true}) {
        generate::Request r;
        r.id = 2 * i + (stop ? 1 : 0);
        r.prompt = ids_of(list[i]->input("prompt"));
        r.sampling.temperature = 0;
        r.sampling.max_new_tokens = static_cast<int64_t>(list[i]->number("max_new_tokens").value());
        if (stop) r.sampling.stop_ids = {static_cast<int32_t>(list[i]->number("stop_token").value())};
        requests.push_back(std::move(r));
      }
    }
    const Results results = run_all(engine, std::move(requests));
    for (size_t i = 0; i < list.size(); ++i) {
      const generate::Result& free_run = results.at(2 * i);
      EXPECT_TRUE(list[i]->matches("tokens", as_tensor(free_run.output_ids))) << list[i]->name;
      EXPECT_TRUE(list[i]->matches("logprobs", at::tensor(at::ArrayRef<float>(free_run.log_probs)))) << list[i]->name;
      EXPECT_TRUE(list[i]->matches("tokens_with_stop", as_tensor(results.at(2 * i + 1).output_ids))) << list[i]->name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, GoldenGeneration, testing::Values(BackendKind::fused, BackendKind::torch),
                         [](const auto& tested) { return tested.param == BackendKind::fused ? "fused" : "torch"; });

}  // namespace
}  // namespace trireme::test
