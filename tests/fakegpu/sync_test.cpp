// Weight syncs whose tensors lie on a device: rows go between buckets of the host and the device by
// its copy engines, or from device to device.
#include "support/sync_cases.hpp"

#include "fakegpu/device_lane.hpp"
#include "trireme/comm/device_bytes.hpp"
#include "trireme/comm/device_copies.hpp"
#include "trireme/plan/sync_buckets.hpp"

namespace trireme::weightsync {
namespace {

class DeviceTensors final : public Tensors {
 public:
  DeviceTensors() = default;
  DeviceTensors(const DeviceTensors&) = delete;
  ~DeviceTensors() override {
    for (uint16_t* memory : memory_) cudaFree(memory);
  }
  uint16_t* allocate(size_t elements) override {
    void* memory = nullptr;
    if (cudaMalloc(&memory, std::max<size_t>(1, elements) * sizeof(uint16_t)) != cudaSuccess)
      throw std::bad_alloc();
    return memory_.emplace_back(static_cast<uint16_t*>(memory));
  }
  void write(uint16_t* to, const uint16_t* from, size_t elements) override {
    copy(to, from, elements);
  }
  void read(uint16_t* to, const uint16_t* from, size_t elements) override {
    copy(to, from, elements);
  }

 private:
  static void copy(uint16_t* to, const uint16_t* from, size_t elements) {
    const auto bytes = static_cast<int64_t>(elements * sizeof(uint16_t));
    comm::start_copy({reinterpret_cast<std::byte*>(to), reinterpret_cast<const std::byte*>(from), 1,
                      bytes, bytes, bytes});
    comm::finish_copies();
  }
  std::vector<uint16_t*> memory_;
};

Home device() {
  SyncOptions options;
  options.device = true;
  options.delta = DeltaScope::off;
  return {"device", options, 16384, [] {
            test::own_device();
            fakegpu::set_delays({.seed = static_cast<unsigned>(1 + test::world().rank()),
                                 .legacy_us = 5,
                                 .others_us = 5});  // thousands of buckets
            return std::make_unique<DeviceTensors>();
          }};
}
Home from_device_to_device() {
  Home home = device();
  home.name = "from_device_to_device";
  home.options.plan.between_devices = true;
  home.bucket_bytes = 4096;
  return home;
}
INSTANTIATE_TEST_SUITE_P(Device, SyncIn, testing::Values(device(), from_device_to_device()),
                         name_of);

int64_t sum_of(const std::vector<Flow>& flows, int64_t (*of)(const Flow&)) {
  int64_t sum = 0;
  for (const Flow& flow : flows) sum += of(flow);
  return sum;
}
int64_t moved_bytes(const Flow& flow) {
  return flow.route == Route::local ? 0 : 2 * flow.elements();
}
int64_t local_bytes(const Flow& flow) {
  return flow.route == Route::local ? 2 * flow.elements() : 0;
}
// Two buckets, if it has so many, as the ledger counts them.
int64_t packed_bytes(const Flow& flow) {
  int64_t most = 0;
  for (const Bucket& bucket : flow.buckets) most = std::max(most, 2 * bucket.elements);
  return flow.route == Route::local
             ? 0
             : std::min<int64_t>(2, std::ssize(flow.buckets)) * ((most + 63) / 64 * 64);
}

// The bits of a sync through the host, the bytes of the plan, and nothing of it in the host's
// memory.
TEST(SyncBetweenDevices, IsThatThroughTheHost) {
  const Home home = from_device_to_device();
  for (const Roles& roles : role_mixes()) {
    SCOPED_TRACE(roles.name);
    const base::ShardLayout source = base::ShardLayout::by_rows(
        llama_tensors(odd_shape()), static_cast<int>(roles.members.sources[0].size()));
    const base::ShardLayout target =
        llama_slices(odd_shape(), static_cast<int>(roles.members.targets[0].size()));
    SyncOptions options = home.options;
    options.plan.bucket_bytes = home.bucket_bytes;
    Member here(source, target, roles.members, home), there(source, target, roles.members, home);
    {
      SyncOptions through_host = device().options;
      WeightSync sync(world(), source, target, roles.members, through_host);
      sync.run(5, there.sources(5, false), there.targets());
    }
    const int64_t before = comm::device_bytes().held;
    WeightSync sync(world(), source, target, roles.members, options);
    const Plan& plan = sync.plan();
    const int64_t packed = comm::device_bytes().held - before;
    EXPECT_LE(packed, sum_of(plan.sends, packed_bytes) + sum_of(plan.receives, packed_bytes));
    const SyncCounters counters = sync.run(5, here.sources(5, false), here.targets());
    EXPECT_EQ(fakegpu::locked_ranges(), 0u);
    EXPECT_EQ(counters.messages, 0);
    EXPECT_EQ(counters.bytes_between_devices, sum_of(plan.sends, moved_bytes));
    EXPECT_EQ(counters.bytes_sent, counters.bytes_between_devices);
    EXPECT_EQ(counters.bytes_received, sum_of(plan.receives, moved_bytes));
    EXPECT_EQ(counters.bytes_local, sum_of(plan.sends, local_bytes));
    const SyncTotals totals = sync.totals(counters);
    EXPECT_EQ(totals.between_devices, totals.sent);
    if (totals.between_devices > 0) {
      EXPECT_THAT(describe(totals), testing::HasSubstr("from GPU to GPU by NCCL"));
    }
    for (size_t i = 0; here.is_target() && i < target.tensors().size(); ++i)
      EXPECT_EQ(here.slice(i), there.slice(i)) << target.tensors()[i].name;
  }
}

// Of what moves after the first sync, as an adapter or what is not frozen; and all again.
TEST(SyncBetweenDevices, OfSomeTensors) {
  const Home home = from_device_to_device();
  const Roles roles = role_mixes().back();
  const base::ShardLayout source = base::ShardLayout::by_rows(
      llama_tensors(odd_shape()), static_cast<int>(roles.members.sources[0].size()));
  const base::ShardLayout target =
      llama_slices(odd_shape(), static_cast<int>(roles.members.targets[0].size()));
  SyncOptions options = home.options;
  options.tensors = {1, 4};
  Member member(source, target, roles.members, home);
  WeightSync sync(world(), source, target, roles.members, options);
  sync.run(1, member.sources(1, false), member.targets());
  member.expect_version(1, false);
  const auto counters = sync.run(2, member.sources(2, false), member.targets());
  EXPECT_EQ(sync.totals(counters).weights,
            2 * (target.tensors()[1].elements() + target.tensors()[4].elements()));
  EXPECT_EQ(counters.bytes_between_devices, sum_of(sync.plan().sends, moved_bytes));
  const auto of_version = [&](size_t tensor, int64_t version) {
    for (size_t slice = 0; slice < roles.members.targets[0].size(); ++slice) {
      if (tensors_of(target, static_cast<int>(slice), version, false)[tensor] ==
          member.slice(tensor))
        return true;
    }
    return false;
  };
  if (member.is_target()) {
    EXPECT_TRUE(of_version(1, 2));
    EXPECT_TRUE(of_version(0, 1));
  }
  sync.forget();
  sync.run(3, member.sources(3, false), member.targets());
  member.expect_version(3, false);
}

}  // namespace
}  // namespace trireme::weightsync
