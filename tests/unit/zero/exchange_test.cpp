// The exchanges between CPUs. The cases are those of every kind.
#include "support/exchange_cases.hpp"

namespace trireme::test {
namespace {

using comm::ExchangeKind;

Place place(const std::string& name, ExchangeKind kind) {
  return {name, [kind] { return std::make_unique<HostLane>(kind); }, kind == ExchangeKind::shared_window};
}

INSTANTIATE_TEST_SUITE_P(Kinds, Exchange, testing::Values(place("window", ExchangeKind::shared_window), place("ring", ExchangeKind::mpi_ring)), name_of);
INSTANTIATE_TEST_SUITE_P(Kinds, RingExchange, testing::Values(place("ring", ExchangeKind::mpi_ring)), name_of);

TEST(MpiRing, HoldsTwoStagesNotTheModel) {
  const auto exchange = comm::make_shard_exchange(world(), five_stages(world().size()), HostLane(ExchangeKind::mpi_ring).options());
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

}  // namespace
}  // namespace trireme::test
