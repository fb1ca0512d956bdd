// Several adapters in one batch: each text is that of an engine with its adapter alone.
#include "torch/torch.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "tiny_model.hpp"
#include "trireme/base/error.hpp"

namespace trireme::test {
namespace {

using config::DType;
using generate::BackendKind;
using generate::Engine;
using generate::EngineOptions;
using generate::GeneratorWeights;
using generate::Request;

constexpr int64_t adapted_vocab = 900;

EngineOptions options(BackendKind backend, int threads = 2) {
  EngineOptions o;
  o.kv_bytes = int64_t{4} << 20;
  o.max_batch = 6;
  o.prefill_chunk_tokens = 30;
  o.page_size = 16;
  o.threads = threads;
  o.backend = backend;
  return o;
}

// Targets that differ, equal ranks and others, a scale of 1 and others.
std::vector<model::NamedAdapter> adapters() {
  model::Adapter linear;
  linear.rank = 4;
  linear.alpha = 2;
  linear.dropout = 0.2;
  linear.targets = {"all-linear"};
  model::Adapter attention = linear;
  attention.alpha = 4;
  attention.targets = {"q_proj", "o_proj", "embed_tokens"};
  model::Adapter patterned = linear;
  patterned.target_pattern = ".*layers\\.1\\..*(gate|down)_proj";
  patterned.targets.clear();
  patterned.rank = 6;
  patterned.rslora = true;
  return {{linear, "first"}, {attention, "second"}, {patterned, "third"}};
}

// Requests of three adapters and of none; prompts come again with other adapters, longer than a
// page, so that their beginnings could be shared.
std::vector<Request> requests(int samples = 1) {
  std::vector<Request> out;
  for (int sample = 0; sample < samples; ++sample) {
    for (Request request : mixed_requests(adapted_vocab)) {
      const auto id = static_cast<int64_t>(request.id);
      request.prompt = tiny_prompt(40, static_cast<uint64_t>(id % 3), adapted_vocab);
      request.adapter = static_cast<int32_t>((id / 3) % 4) - 1;
      request.id += static_cast<uint64_t>(100 * sample);
      out.push_back(std::move(request));
    }
  }
  return out;
}

Results of_adapter(const Results& all, const std::vector<Request>& asked, int32_t adapter) {
  Results out;
  for (const Request& request : asked) {
    if (request.adapter == adapter) out[request.id] = all.at(request.id);
  }
  return out;
}

// The parameters of adapter `which` of the several in `from`, or of none.
GeneratorWeights alone(const model::ModelSpec& several, const GeneratorWeights& from,
                       const model::ModelSpec& spec, int32_t which) {
  GeneratorWeights out(spec, from.dtype());
  const auto storage = out.storage();
  for (size_t p = 0; p < storage.size(); ++p) {
    std::string name = spec.parameters[p].spec.name;
    if (name.find(".lora_") != std::string::npos)
      name = model::numbered(name, static_cast<unsigned>(which));
    const auto found = std::ranges::find_if(
        several.parameters, [&](const model::Parameter& q) { return q.spec.name == name; });
    if (found == several.parameters.end()) throw InternalError("no " + name);
    const auto index = static_cast<size_t>(found - several.parameters.begin());
    std::memcpy(
        storage[p], from.data(index),
        static_cast<size_t>(out.block(p).elements() * config::bytes_per_element(from.dtype())));
  }
  return out;
}

TEST(SeveralAdapters, GiveTheBitsOfOneRunEach) {
  const auto base = tiny_spec(adapted_vocab);
  const auto list = adapters();
  const auto several = model::with_adapters(base, list);
  for (const DType type : {DType::f32, DType::bf16}) {
    const auto weights = tiny_weights(several, type);
    for (const int threads : {1, 2}) {
      Engine together(several, weights, options(BackendKind::fused, threads));
      const auto asked = requests(2);
      const Results all = run_all(together, asked);
      EXPECT_GT(together.counters().shared_tokens, 0);
      Results texts;
      for (int32_t which = -1; which < std::ssize(list); ++which) {
        SCOPED_TRACE(which);
        const auto spec = which < 0 ? base
                                    : model::without_dropout(model::with_adapter(
                                          base, list[static_cast<size_t>(which)].adapter, "alone"));
        const auto its = alone(several, weights, spec, which);
        std::vector<Request> mine;
        for (const Request& request : asked) {
          if (request.adapter == which) mine.push_back(request);
        }
        Engine single(spec, its, options(BackendKind::fused, threads));
        const Results want = run_all(single, mine);
        expect_same(want, of_adapter(all, asked, which));
      }
      // Request 0 has the prompt of request 3, and another adapter.
      EXPECT_NE(all.at(0).output_ids, all.at(3).output_ids);
    }
  }
}

TEST(SeveralAdapters, AreComputedByLibTorchToo) {
  const auto several = model::with_adapters(tiny_spec(adapted_vocab), adapters());
  const auto weights = tiny_weights(several, DType::f32);
  Engine fused(several, weights, options(BackendKind::fused)),
      torch(several, weights, options(BackendKind::torch));
  expect_close(run_all(fused, requests()), run_all(torch, requests()), 2e-5);
}

TEST(SeveralAdapters, ShareWhatOneAloneTrainsWhole) {
  auto list = adapters();
  list[1].adapter.modules_to_save = {"lm_head"};
  EXPECT_THROW(model::with_adapters(tiny_spec(adapted_vocab), list), UserError);
  list[1].adapter.modules_to_save.clear();
  list[2].adapter.target_pattern = "lm_head";
  EXPECT_THROW(model::with_adapters(tiny_spec(adapted_vocab), list), UserError);
  list[2].adapter.target_pattern = "nothing";
  EXPECT_THROW(model::with_adapters(tiny_spec(adapted_vocab), list), UserError);
}

}  // namespace
}  // namespace trireme::test
