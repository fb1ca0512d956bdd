// A replica whose ranks add up in shared memory beside one that gathers by MPI: np 2, 3 and 4, the
// same bits.
#include "torch/torch.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/world.hpp"
#include "tiny_model.hpp"

namespace trireme::test {
namespace {

using config::DType;
using generate::Engine;
using generate::EngineOptions;
using testing::Contains;
using testing::HasSubstr;

constexpr int64_t vocab = 3001;

EngineOptions options(bool shared_sums, int threads) {
  EngineOptions o;
  o.kv_bytes = int64_t{8} << 20;
  o.max_batch = 6;
  o.prefill_chunk_tokens = 30;
  o.threads = threads;
  o.backend = generate::BackendKind::fused;
  o.shared_sums = shared_sums;
  return o;
}

// 2 layers, hidden 96, 8 heads of 16 with KV heads of their own: for up to eight ranks.
model::ModelSpec spec_of_many_heads() {
  auto shape = tiny_spec(vocab).shape;
  shape.heads = shape.kv_heads = 8;
  return model::describe(shape, model::HeadKind::language);
}

TEST(SharedSums, HaveTheBitsOfGatheredOnes) {
  const auto& comm = world();
  const auto spec = spec_of_many_heads();
  for (const DType type : {DType::f32, DType::bf16}) {
    const auto mine = tiny_weights(spec, type, comm.rank(), comm.size());
    for (const int threads : {1, 3}) {
      Engine gathered(spec, mine, options(false, threads), comm);
      Engine shared(spec, mine, options(true, threads), comm);
      EXPECT_THAT(gathered.describe(),
                  Contains(HasSubstr("ranks through MPI: generate.shared_sums = false")));
      EXPECT_THAT(shared.describe(), Contains(HasSubstr("ranks through memory that they share")));
      const Results want = run_all(gathered, mixed_requests(vocab)),
                    got = run_all(shared, mixed_requests(vocab));
      EXPECT_EQ(got.size(), 10u);
      expect_same(want, got);
      expect_agreement(got);
      EXPECT_GT(shared.counters().sum_bytes, 0);
      EXPECT_EQ(shared.counters().sum_bytes, gathered.counters().sum_bytes);
    }
  }
}

// One prompt after another is longer than all before: the memory grows while others are at the sums
// of shorter ones.
TEST(SharedSums, GrowWithTheSteps) {
  const auto& comm = world();
  const auto spec = spec_of_many_heads();
  const auto mine = tiny_weights(spec, DType::f32, comm.rank(), comm.size());
  const auto texts = [&](bool shared_sums) {
    EngineOptions o = options(shared_sums, 2);
    o.prefill_chunk_tokens = 512;
    Engine engine(spec, mine, o, comm);
    Results out;
    for (const int64_t length : {3, 70, 200, 500}) {
      generate::Request request;
      request.id = static_cast<uint64_t>(length);
      request.prompt = tiny_prompt(length, static_cast<uint64_t>(length), vocab);
      request.sampling.max_new_tokens = 5;
      out.merge(run_all(engine, {request}));
    }
    return out;
  };
  const Results want = texts(false), got = texts(true);
  EXPECT_EQ(got.size(), 4u);
  expect_same(want, got);
}

}  // namespace
}  // namespace trireme::test
