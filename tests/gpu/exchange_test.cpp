// The device exchanges alone: NCCL where every rank has a GPU of its own, the staged one where
// ranks share.
#include "torch/torch.hpp"

#include <gtest/gtest.h>

#include "gpu/device.hpp"
#include "support/exchange_user.hpp"
#include "support/world.hpp"
#include "trireme/comm/shard_exchange.hpp"
#include "trireme/machine/device.hpp"

namespace trireme::test {
namespace {

// Parameter 0 is in the first and the last (tied). Numbers per rank are odd on purpose.
std::vector<comm::SlotGeometry> three_stages(int ranks) {
  return slots_of({{{0, 700}}, {{1, 13}, {2, 129}}, {{3, 5}, {0, 700}}}, ranks);
}

at::Tensor on_gpu(void* data, int64_t elements) {
  return at::from_blob(data, {elements}, at::TensorOptions().dtype(at::kFloat).device(gpu()));
}

float weight_of(size_t id, int rank) {
  return static_cast<float>(10 * id) + static_cast<float>(rank + 1);
}

TEST(GpuExchange, GathersEverySliceAndSumsEveryGradient) {
  const int ranks = world().size(), mine = world().rank();
  const auto slots = three_stages(ranks);
  comm::ExchangeOptions options;
  options.weight_type = comm::DType::f32;
  options.device = true;
  const auto exchange = comm::make_shard_exchange(world(), slots, options);
  EXPECT_EQ(exchange->kind(),
            ranks_share_a_gpu() ? "MPI ring staged through host memory" : "NCCL ring");

  exchange->begin_update();
  for (const auto& slot : slots) {
    for (const auto& p : slot.parameters)
      on_gpu(exchange->own_slice(p.id), p.per_rank).fill_(weight_of(p.id, mine));
  }
  exchange->end_update();
  for (int stage = 0; stage < 3; ++stage) {
    exchange->gather(stage);
    const auto pointers = exchange->gathered(stage);
    const auto& parameters = slots[static_cast<size_t>(stage)].parameters;
    for (size_t i = 0; i < parameters.size(); ++i) {
      const at::Tensor whole =
          on_gpu(pointers[i], ranks * parameters[i].per_rank).cpu().view({ranks, -1});
      for (int r = 0; r < ranks; ++r)
        EXPECT_TRUE(whole.select(0, r).eq(weight_of(parameters[i].id, r)).all().item<bool>());
    }
    exchange->release(stage);
  }
  for (int stage = 2; stage >= 0; --stage) {
    const auto& parameters = slots[static_cast<size_t>(stage)].parameters;
    const auto gradients = exchange->gradients(stage);
    std::vector<at::Tensor> sums;
    std::vector<float*> into;
    for (size_t i = 0; i < parameters.size(); ++i) {
      const int64_t elements = ranks * parameters[i].per_rank;
      on_gpu(gradients[i], elements)
          .copy_(at::arange(elements, at::TensorOptions().dtype(at::kFloat).device(gpu())));
      sums.push_back(
          at::ones({parameters[i].per_rank}, at::TensorOptions().dtype(at::kFloat).device(gpu())));
      into.push_back(sums.back().mutable_data_ptr<float>());
    }
    exchange->reduce(stage);
    exchange->finish_reduce(stage, into);
    for (size_t i = 0; i < parameters.size(); ++i) {
      const int64_t n = parameters[i].per_rank;
      const at::Tensor want = at::arange(mine * n, (mine + 1) * n, at::kFloat).mul(ranks).add(1);
      EXPECT_TRUE(at::equal(sums[i].cpu(), want)) << "stage " << stage << ", parameter " << i;
    }
  }
  machine::wait_for(gpu());
}

// train.reduce_dtype = "bf16": within the rounding of each rank's values and of each addition, half
// the bytes, the same bits again.
TEST(GpuExchange, SumsGradientsInHalfPrecision) {
  const int ranks = world().size(), mine = world().rank();
  const auto slots = three_stages(ranks);
  comm::ExchangeOptions options;
  options.weight_type = comm::DType::f32;
  options.device = true;
  const auto whole = comm::make_shard_exchange(world(), slots, options);
  options.reduce_type = comm::DType::bf16;
  const auto half = comm::make_shard_exchange(world(), slots, options);
  EXPECT_EQ(half->kind(), whole->kind());
  const auto floats = at::TensorOptions().dtype(at::kFloat).device(gpu());
  const auto value = [](int64_t first, int64_t count, int64_t of_rank) {
    return at::arange(first, first + count, at::kFloat)
        .mul(0.37)
        .add(0.001 * static_cast<double>(of_rank));
  };
  // This rank's sums of a stage, on the host.
  const auto sums_of = [&](comm::ShardExchange& exchange, int stage) {
    const auto& parameters = slots[static_cast<size_t>(stage)].parameters;
    const auto gradients = exchange.gradients(stage);
    std::vector<at::Tensor> sums;
    std::vector<float*> into;
    for (size_t i = 0; i < parameters.size(); ++i) {
      on_gpu(gradients[i], ranks * parameters[i].per_rank)
          .copy_(value(0, ranks * parameters[i].per_rank, mine));
      sums.push_back(at::zeros({parameters[i].per_rank}, floats));
      into.push_back(sums.back().mutable_data_ptr<float>());
    }
    exchange.reduce(stage);
    exchange.finish_reduce(stage, into);
    for (at::Tensor& sum : sums) sum = sum.cpu();
    return sums;
  };
  for (int stage = 2; stage >= 0; --stage) {
    const auto& parameters = slots[static_cast<size_t>(stage)].parameters;
    const auto exact = sums_of(*whole, stage), got = sums_of(*half, stage),
               again = sums_of(*half, stage);
    for (size_t i = 0; i < parameters.size(); ++i) {
      const int64_t n = parameters[i].per_rank;
      at::Tensor want = at::zeros({n}, at::kDouble);
      for (int rank = 0; rank < ranks; ++rank) want.add_(value(mine * n, n, rank).to(at::kDouble));
      SCOPED_TRACE(testing::Message() << "stage " << stage << ", parameter " << i);
      EXPECT_TRUE(at::allclose(exact[i].to(at::kDouble), want, 1e-6, 1e-6));
      // Rounded on each rank, and once more wherever NCCL adds: a 256th of the sum each.
      EXPECT_TRUE(at::allclose(got[i].to(at::kDouble), want,
                               (ranks > 1 ? ranks + 1 : 0) / 256.0 + 1e-6, 1e-6));
      if (n > 100) {
        EXPECT_EQ(at::equal(got[i], exact[i]), ranks == 1) << "nothing is rounded among one rank";
      }
      EXPECT_TRUE(at::equal(got[i], again[i]));
    }
  }
  EXPECT_EQ(half->counters().reduced_bytes, whole->counters().reduced_bytes)
      << "half the bytes, twice";
  machine::wait_for(gpu());
}

}  // namespace
}  // namespace trireme::test
