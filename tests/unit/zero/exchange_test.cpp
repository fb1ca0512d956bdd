// The exchanges between CPUs. The cases are those of every kind.
#include "torch/torch.hpp"

#include "support/exchange_cases.hpp"
#include "trireme/kernels/scalar_type.hpp"
#include "trireme/model/stored_type.hpp"

namespace trireme::test {
namespace {

using comm::ExchangeKind;

Place place(const std::string& name, ExchangeKind kind) {
  return {name, [kind] { return std::make_unique<HostLane>(kind); },
          kind != ExchangeKind::mpi_ring};
}

INSTANTIATE_TEST_SUITE_P(Kinds, Exchange,
                         testing::Values(place("windows", ExchangeKind::windows),
                                         place("ring", ExchangeKind::mpi_ring)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Kinds, RingExchange,
                         testing::Values(place("ring", ExchangeKind::mpi_ring)), name_of);

TEST(MpiRing, HoldsTwoStagesNotTheModel) {
  const auto exchange = comm::make_shard_exchange(world(), five_stages(world().size()),
                                                  HostLane(ExchangeKind::mpi_ring).options());
  const int64_t n = world().size();
  const int64_t own = 4 * (700 + 13 + 129 + 13 + 129 + 1 + 300 + 5);
  const int64_t ring = 4 * n * (700 + 5 + 300);  // the last two stages
  EXPECT_LE(exchange->counters().weight_memory, own + ring + 16 * 128);
}

TEST(MakeShardExchange, PicksTheWindowOnOneNode) {
  const auto exchange = comm::make_shard_exchange(world(), five_stages(world().size()), {});
  EXPECT_NE(exchange->kind().find("shared window"), std::string::npos);
}

TEST(MakeShardExchange, RefusesAGpuInAProgramWithoutCuda) {
  comm::ExchangeOptions options;
  options.device = true;
  EXPECT_THROW(comm::make_shard_exchange(world(), five_stages(world().size()), options), UserError);
}

// In memory, in messages, in files and as tensors.
TEST(ElementType, TakesTheSameRoomEverywhere) {
  for (const auto type : {base::ElementType::f32, base::ElementType::bf16}) {
    const size_t bytes = base::size_of(type);
    EXPECT_EQ(comm::size_of(comm::dtype_of(type)), bytes);
    EXPECT_EQ(model::bytes_of(model::stored_type_of(type)), bytes);
    EXPECT_EQ(at::elementSize(kernels::scalar_type(type)), bytes);
  }
  EXPECT_EQ(comm::dtype_of(base::ElementType::bf16), comm::DType::bf16);
  EXPECT_EQ(model::stored_type_of(base::ElementType::bf16), model::StoredType::bf16);
  EXPECT_EQ(kernels::scalar_type(base::ElementType::bf16), at::kBFloat16);
}

}  // namespace
}  // namespace trireme::test
