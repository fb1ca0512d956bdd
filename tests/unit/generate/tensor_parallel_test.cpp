// The replica of t tensor-parallel ranks against one rank: np 1, 2 (2 + 1 KV groups) and 3.
#include "torch/torch.hpp"

#include <gtest/gtest.h>

#include <set>

#include "support/world.hpp"
#include "tiny_model.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/isa.hpp"

namespace trireme::test {
namespace {

using config::DType;
using generate::BackendKind;
using generate::Engine;
using generate::EngineOptions;
using generate::Request;

constexpr int64_t vocab = 9001;
std::vector<Request> requests() { return mixed_requests(vocab); }

EngineOptions options(BackendKind backend) {
  EngineOptions o;
  o.kv_bytes = int64_t{4} << 20;
  o.max_batch = 6;
  o.prefill_chunk_tokens = 30;
  o.threads = 1;
  o.backend = backend;
  return o;
}

TEST(TensorParallel, GivesTheTextsOfOneRank) {
  const auto& comm = world();
  auto qwen3 = tiny_spec(vocab).shape;
  qwen3.architecture = config::Architecture::qwen3;
  const auto norms_of_heads = model::describe(qwen3, model::HeadKind::language),
             plain = tiny_spec(vocab);
  for (const auto& [spec, backend] :
       {std::pair(plain, BackendKind::fused), std::pair(plain, BackendKind::torch),
        std::pair(norms_of_heads, BackendKind::fused),
        std::pair(norms_of_heads, BackendKind::torch)}) {
    const auto whole = tiny_weights(spec, DType::f32);
    Engine single(spec, whole, options(backend));
    const Results want = run_all(single, requests());
    const auto mine = tiny_weights(spec, DType::f32, comm.rank(), comm.size());
    Engine engine(spec, mine, options(backend), comm);
    const Results got = run_all(engine, requests());
    expect_close(want, got, 2e-5);
    for (const auto& [id, result] : got) {
      if (id % 2 == 0) continue;
      ASSERT_GE(result.output_ids.size(), 5u) << "request " << id;
      for (size_t i = 0; i + 1 < result.output_ids.size(); ++i)
        EXPECT_EQ(result.output_ids[i] % 2, 1) << "request " << id << " token " << i;
    }
    expect_agreement(got);
  }
}

TEST(TensorParallel, GivesTheTextsOfOneRankForEveryFamily) {
  const auto& comm = world();
  std::set<config::Architecture> seen;
  for (const SmallFamily& family : small_families(3)) {
    SCOPED_TRACE(family.config);
    seen.insert(family.shape.architecture);
    const auto spec = model::describe(family.shape, model::HeadKind::language);
    if (comm.size() > 1 && family.config.starts_with("\"Olmo")) {  // norms of whole rows
      EXPECT_THROW(tiny_weights(spec, DType::f32, comm.rank(), comm.size()), UserError);
      continue;
    }
    const auto whole = tiny_weights(spec, DType::f32);
    const auto mine = tiny_weights(spec, DType::f32, comm.rank(), comm.size());
    for (const BackendKind backend : {BackendKind::fused, BackendKind::torch}) {
      Engine single(spec, whole, options(backend));
      Engine engine(spec, mine, options(backend), comm);
      const Results got = run_all(engine, mixed_requests(family.shape.vocab));
      expect_close(run_all(single, mixed_requests(family.shape.vocab)), got, 5e-5);
      expect_agreement(got);
    }
  }
  EXPECT_EQ(seen.size(), config::architecture_table.size()) << "a family has no small model";
}

// An adapter beside the weights: A of a layer that is cut by its inputs, B of one that is cut by
// its outputs; look-ups by column, and the head.
TEST(TensorParallel, GivesTheTextsOfOneRankWithAnAdapter) {
  const auto& comm = world();
  model::Adapter adapter;
  adapter.rank = 4;
  adapter.alpha = 0.5;
  for (const auto& targets : std::vector<std::vector<std::string>>{
           {"all-linear", "embed_tokens", "lm_head"}, {"down_proj", "k_proj"}}) {
    adapter.targets = targets;
    adapter.rank_pattern = {{"layers.1.mlp.down_proj", 7}};
    const auto spec = model::with_adapter(tiny_spec(vocab), adapter, "this test");
    const auto whole = tiny_weights(spec, DType::f32);
    const auto mine = tiny_weights(spec, DType::f32, comm.rank(), comm.size());
    for (const BackendKind backend : {BackendKind::fused, BackendKind::torch}) {
      Engine single(spec, whole, options(backend));
      Engine engine(spec, mine, options(backend), comm);
      const Results got = run_all(engine, requests());
      expect_close(run_all(single, requests()), got, 2e-5);
      expect_agreement(got);
    }
    const auto narrow = tiny_weights(spec, DType::bf16, comm.rank(), comm.size());
    Engine engine(spec, narrow, options(BackendKind::fused), comm);
    expect_agreement(run_all(engine, requests()));
  }
}

TEST(TensorParallel, GivesTheTextsOfOneRankForEveryFamilyWithAnAdapter) {
  const auto& comm = world();
  model::Adapter adapter;
  adapter.rank = 3;
  adapter.alpha = 1;
  adapter.targets = {"all-linear"};
  for (const SmallFamily& family : small_families(3)) {
    if (comm.size() > 1 && family.config.starts_with("\"Olmo")) continue;
    SCOPED_TRACE(family.config);
    const auto spec = model::with_adapter(model::describe(family.shape, model::HeadKind::language),
                                          adapter, "this test");
    const auto whole = tiny_weights(spec, DType::f32);
    Engine single(spec, whole, options(BackendKind::fused));
    const auto mine = tiny_weights(spec, DType::f32, comm.rank(), comm.size());
    Engine engine(spec, mine, options(BackendKind::fused), comm);
    const Results got = run_all(engine, mixed_requests(family.shape.vocab));
    expect_close(run_all(single, mixed_requests(family.shape.vocab)), got, 5e-5);
    expect_agreement(got);
  }
}

TEST(TensorParallel, Bf16RanksAgreeWithEachOther) {
  const auto& comm = world();
  const auto spec = tiny_spec(vocab, true);
  const auto mine = tiny_weights(spec, DType::bf16, comm.rank(), comm.size());
  EngineOptions o = options(BackendKind::fused);
  o.threads = 2;
  Engine engine(spec, mine, o, comm);
  const Results got = run_all(engine, requests());
  EXPECT_EQ(got.size(), 10u);
  expect_agreement(got);
}

// Many rows at once, which on matrix units are dealt out whole, products and sums over the ranks
// with them.
TEST(TensorParallel, ThreadsChangeNoBitOfLongPrompts) {
  const auto& comm = world();
  const auto spec = tiny_spec(vocab, true);
  for (const DType type : {DType::f32, DType::bf16}) {
    const auto mine = tiny_weights(spec, type, comm.rank(), comm.size());
    const auto run = [&](int threads) {
      EngineOptions o = options(BackendKind::fused);
      o.threads = threads;
      o.prefill_chunk_tokens = 300;
      Engine engine(spec, mine, o, comm);
      std::vector<Request> long_ones = requests();
      for (size_t i = 0; i < 2; ++i)
        long_ones[i].prompt = tiny_prompt(330 + 40 * static_cast<int64_t>(i), 20 + i, vocab);
      const Results results = run_all(engine, std::move(long_ones));
      EXPECT_EQ(engine.counters().whole_row_steps > 0,
                threads > 1 && type == DType::bf16 && base::has_matrix_units());
      return results;
    };
    expect_same(run(1), run(2));
  }
}

// Each rank's slices have scales of their own; logits in fp32 are drawn from together.
TEST(TensorParallel, WeightsInEightBitsAndAWideHeadAgree) {
  const auto& comm = world();
  auto spec = tiny_spec(vocab, true);
  spec.head_type = config::HeadType::fp32;
  auto mine = tiny_weights(spec, DType::bf16, comm.rank(), comm.size());
  mine.add_int8(spec);
  mine.quantise();
  Engine engine(spec, mine, options(BackendKind::fused), comm);
  const Results got = run_all(engine, requests());
  EXPECT_EQ(got.size(), 10u);
  expect_agreement(got);
}

TEST(TensorParallel, GuessesChangeNoBit) {
  const auto& comm = world();
  const auto spec = tiny_spec(vocab);
  for (const DType type : {DType::f32, DType::bf16}) {
    const auto mine = tiny_weights(spec, type, comm.rank(), comm.size());
    EngineOptions o = options(BackendKind::fused);
    o.max_batch = 3;
    const auto biased = [] {  // two tokens are left, so that what stood there before comes again
      auto all = requests();
      for (Request& r : all) {
        r.sampling.logit_bias = {{1, 90}, {3, 90}};
        r.sampling.max_new_tokens = 50;
      }
      return all;
    };
    Engine plain(spec, mine, o, comm);
    o.speculation_tokens = 6;
    Engine guessing(spec, mine, o, comm);
    const Results got = run_all(guessing, biased());
    expect_same(run_all(plain, biased()), got);
    expect_agreement(got);
    EXPECT_GT(guessing.counters().accepted_tokens, 0);
  }
}

TEST(TensorParallel, ShortOfPagesAllRanksPreemptAlike) {
  const auto& comm = world();
  const auto spec = tiny_spec(vocab);
  const auto mine = tiny_weights(spec, DType::f32, comm.rank(), comm.size());
  Engine roomy(spec, mine, options(BackendKind::fused), comm);
  const Results want = run_all(roomy, requests());
  EngineOptions tight = options(BackendKind::fused);
  tight.kv_bytes = 10 * 2 * 3 * 16 * 32 *
                   4;  // ten pages where a rank has all three KV heads, more where it has fewer
  Engine engine(spec, mine, tight, comm);
  expect_same(want, run_all(engine, requests()));
  if (comm.size() == 1) { EXPECT_GT(engine.counters().preemptions, 0); }
  expect_agreement(want);
}

}  // namespace
}  // namespace trireme::test
