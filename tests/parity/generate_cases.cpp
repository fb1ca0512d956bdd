// Greedy texts of transformers' generate on small models, by every backend, each prompt alone and
// all prompts of a model together. Two ranks are one tensor-parallel replica, and where there are
// four, these are one, too; a third rank is a replica of its own.
#include "torch/torch.hpp"

#include <map>

#include "parity/cases.hpp"
#include "parity/golden_rows.hpp"
#include "parity/ranks.hpp"
#include "parity/registry.hpp"
#include "parity/site.hpp"
#include "trireme/generate/engine.hpp"
#include "trireme/model/model_files.hpp"

namespace trireme::test {
namespace {

using generate::BackendKind;

std::vector<int> degrees() {
  if (world().size() < 4) return {2};
  if (site().device) return {4};
  return {2, 4};
}

std::vector<BackendKind> backends() {
  if (site().device) return {BackendKind::torch};
  return {BackendKind::fused, BackendKind::torch};
}

// The same function with a KV head for each rank: no group is split, so where there are more ranks
// than groups each query head has a copy of its group's.
model::ModelSpec described(const GoldenCase& c, int degree) {
  auto shape = model::open_model(model_path(c)).shape;
  if (degree > shape.kv_heads) shape.kv_heads = shape.heads;
  return model::describe(shape, model::HeadKind::language);
}

zero::ReadRows reader_of(const GoldenCase& c, const model::ModelSpec& spec) {
  const auto stored =
      model::describe(model::open_model(model_path(c)).shape, model::HeadKind::language);
  const int64_t copies = spec.shape.kv_heads / stored.shape.kv_heads, head = stored.shape.head_dim;
  return [read = golden_reader(c, stored), spec, copies, head](size_t p, const base::Block& block,
                                                               float* out) {
    const auto role = spec.parameters[p].role;
    if (copies == 1 || (role != model::Role::k && role != model::Role::v))
      return read(p, block, out);
    for (int64_t row = block.row; row < block.row + block.rows;
         row += head, out += head * block.columns) {
      read(p, {row / head / copies * head, head, block.column, block.columns}, out);
    }
  };
}

// A replica of the ranks beside this one, and the model of a case on it.
struct Replica {
  Replica(const GoldenCase& c, int degree)
      : ranks(comm::Comm::split(world(), world().rank() / degree, world().rank(), "replica")),
        spec(described(c, ranks->size())),
        weights(spec, config::DType::f32, ranks->rank(), ranks->size(),
                site().device ? generate::Place::device : generate::Place::host) {
    const auto read = reader_of(c, spec);
    const auto storage = weights.storage();
    for (size_t p = 0; p < storage.size(); ++p)
      read(p, weights.block(p), reinterpret_cast<float*>(storage[p]));
  }

  std::map<uint64_t, generate::Result> write(const std::vector<generate::Request>& requests,
                                             generate::EngineOptions options, BackendKind backend) {
    options.kv_bytes = int64_t{4} << 20;
    options.threads = 1;
    options.backend = backend;
    generate::Engine engine(spec, weights, options, ranks);
    std::map<uint64_t, generate::Result> out;
    engine.run(requests, [&](const generate::Result& result) { out[result.id] = result; });
    EXPECT_EQ(engine.counters().sum_bytes > 0, ranks->size() > 1);
    if (site().device) {
      EXPECT_GT(engine.counters().paged_attention_calls, 0);
      EXPECT_EQ(engine.counters().sum_host_bytes, 0) << "NCCL adds";
    }
    return out;
  }

  comm::Comm ranks;
  model::ModelSpec spec;
  generate::GeneratorWeights weights;
};

at::Tensor as_tensor(const std::vector<int32_t>& ids) {
  return at::tensor(at::ArrayRef<int32_t>(ids));
}

// With ids 2 i and 2 i + 1: to the end, and to the stop token.
void add_requests(const GoldenCase& c, uint64_t i, std::vector<generate::Request>& requests) {
  const at::Tensor prompt = c.input("prompt").to(at::kInt).contiguous();
  generate::Request request;
  request.id = 2 * i;
  request.prompt.assign(prompt.const_data_ptr<int32_t>(),
                        prompt.const_data_ptr<int32_t>() + prompt.numel());
  request.sampling.temperature = 0;
  request.sampling.max_new_tokens = static_cast<int64_t>(c.number("max_new_tokens").value());
  requests.push_back(request);
  request.id = 2 * i + 1;
  request.sampling.stop_ids = {static_cast<int32_t>(c.number("stop_token").value())};
  requests.push_back(request);
}

void expect_texts(const GoldenCase& c, uint64_t i,
                  const std::map<uint64_t, generate::Result>& got) {
  expect_matches(c, "tokens", as_tensor(got.at(2 * i).output_ids));
  expect_matches(c, "logprobs", at::tensor(at::ArrayRef<float>(got.at(2 * i).log_probs)));
  expect_matches(c, "tokens_with_stop", as_tensor(got.at(2 * i + 1).output_ids));
}

using Greedy = AtSite;

// More of them than run at a time, and their prompts in pieces.
TEST_F(Greedy, AllPromptsOfAModelTogether) {
  generate::EngineOptions few;
  few.max_batch = 5;
  few.prefill_chunk_tokens = 24;
  std::map<std::string, std::vector<const GoldenCase*>> models;
  for (const GoldenCase* c : Golden::instance().starting_with("greedy."))
    models[c->word("model").value()].push_back(c);
  for (const auto& [name, cases] : models) {
    std::vector<generate::Request> requests;
    for (size_t i = 0; i < cases.size(); ++i) add_requests(*cases[i], i, requests);
    for (const int degree : degrees()) {
      Replica replica(*cases.front(), degree);
      for (const BackendKind backend : backends()) {
        const auto got = replica.write(requests, few, backend);
        for (size_t i = 0; i < cases.size(); ++i) expect_texts(*cases[i], i, got);
      }
    }
  }
}

}  // namespace

void check_greedy(const GoldenCase& c) {
  std::vector<generate::Request> requests;
  add_requests(c, 0, requests);
  for (const int degree : degrees()) {
    Replica replica(c, degree);
    for (const BackendKind backend : backends())
      expect_texts(c, 0, replica.write(requests, {}, backend));
  }
}

}  // namespace trireme::test
