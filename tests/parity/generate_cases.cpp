// Greedy texts of transformers' generate on small models, by both backends. Two ranks are one tensor-parallel replica; a third
// rank is a replica of its own.
#include "torch/torch.hpp"

#include "parity/cases.hpp"
#include "parity/golden_rows.hpp"
#include "parity/ranks.hpp"
#include "parity/registry.hpp"
#include "trireme/generate/engine.hpp"
#include "trireme/model/model_files.hpp"

namespace trireme::test {
namespace {

using generate::BackendKind;

generate::GeneratorWeights load(const GoldenCase& c, const model::ModelSpec& spec, const comm::CommView& replica) {
  generate::GeneratorWeights weights(spec, config::DType::f32, replica.rank(), replica.size());
  const auto read = golden_reader(c, spec);
  const auto storage = weights.storage();
  for (size_t p = 0; p < storage.size(); ++p) read(p, weights.block(p), reinterpret_cast<float*>(storage[p]));
  return weights;
}

at::Tensor as_tensor(const std::vector<int32_t>& ids) { return at::tensor(at::ArrayRef<int32_t>(ids)); }

generate::Request request_of(const GoldenCase& c, uint64_t id) {
  const at::Tensor prompt = c.input("prompt").to(at::kInt).contiguous();
  generate::Request request;
  request.id = id;
  request.prompt.assign(prompt.const_data_ptr<int32_t>(), prompt.const_data_ptr<int32_t>() + prompt.numel());
  request.sampling.temperature = 0;
  request.sampling.max_new_tokens = static_cast<int64_t>(c.number("max_new_tokens").value());
  return request;
}

}  // namespace

void check_greedy(const GoldenCase& c) {
  const auto replica = comm::Comm::split(world(), world().rank() / 2, world().rank(), "replica");
  const auto spec = model::describe(model::open_model(model_path(c)).shape, model::HeadKind::language);
  const auto weights = load(c, spec, replica);
  for (const BackendKind backend : {BackendKind::fused, BackendKind::torch}) {
    generate::EngineOptions options;
    options.kv_bytes = int64_t{4} << 20;
    options.threads = 1;
    options.backend = backend;
    generate::Engine engine(spec, weights, options, replica);
    std::vector<generate::Request> requests{request_of(c, 0), request_of(c, 1)};
    requests[1].sampling.stop_ids = {static_cast<int32_t>(c.number("stop_token").value())};
    engine.run(requests, [&](const generate::Result& result) {
      if (result.id == 1) return expect_matches(c, "tokens_with_stop", as_tensor(result.output_ids));
      expect_matches(c, "tokens", as_tensor(result.output_ids));
      expect_matches(c, "logprobs", at::tensor(at::ArrayRef<float>(result.log_probs)));
    });
  }
}

}  // namespace trireme::test
