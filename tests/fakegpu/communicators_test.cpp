// Communicators of NCCL as its manual wants them: operated by one thread at a time, recorded by the
// thread that records, aborted together and after the recordings that have their collectives.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include "comm/shard_exchange_parts.hpp"
#include "fakegpu/device_lane.hpp"
#include "support/nccl_soak.hpp"
#include "trireme/base/error.hpp"
#include "trireme/comm/recorded_collectives.hpp"

namespace trireme::test {
namespace {

constexpr int64_t kSummed = 64;

// A stream that can be recorded, and a recording of it.
class RecordedStream final : public comm::RecordedCollectives {
 public:
  RecordedStream() { cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, 0); }
  ~RecordedStream() {
    drop();
    cudaStreamDestroy(stream_);
  }
  cudaStream_t stream() const { return stream_; }
  bool recorded() const { return graph_ != nullptr; }
  // What CUDA said at the end.
  cudaError_t record(const std::function<void()>& work) {
    EXPECT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    work();
    cudaGraph_t graph = nullptr;
    const cudaError_t code = cudaStreamEndCapture(stream_, &graph);
    static_cast<void>(cudaGetLastError());
    if (graph != nullptr) {
      EXPECT_EQ(cudaGraphInstantiate(&graph_, graph, 0), cudaSuccess);
      cudaGraphDestroy(graph);
    }
    return code;
  }
  void launch() { EXPECT_EQ(cudaGraphLaunch(graph_, stream_), cudaSuccess); }

 private:
  void drop() override {
    if (graph_ != nullptr) cudaGraphExecDestroy(std::exchange(graph_, nullptr));
  }
  cudaStream_t stream_ = nullptr;
  cudaGraphExec_t graph_ = nullptr;
};

float* ones(DeviceLane& lane) {
  float* values = lane.allocate(kSummed);
  lane.run({{values, kSummed, true}}, [=] { std::fill_n(values, kSummed, 1.f); });
  lane.wait();
  return values;
}

struct Variable {
  Variable(const char* its_name, const std::string& value) : name(its_name) {
    setenv(name, value.c_str(), 1);
  }
  Variable(const Variable&) = delete;
  ~Variable() { unsetenv(name); }
  const char* name;
};

// By ThreadSanitizer and the fake NCCL: no two threads complete a call. None makes a thread.
TEST(NcclCommunicators, AWatchdogMayLookAllTheTime) {
  own_device();
  DeviceLane lane;
  fakegpu::set_delays(
      {.seed = static_cast<unsigned>(1 + world().rank()), .legacy_us = 0, .others_us = 0});
  const int threads = fakegpu::nccl_counts().threads;
  float* values = lane.allocate(kSummed);
  float seen = 0;
  nccl_soak(
      {.data = values,
       .count = kSummed,
       .fill =
           [&](float value) {
             lane.run({{values, kSummed, true}}, [=] { std::fill_n(values, kSummed, value); });
           },
       .first =
           [&] {
             lane.run({{values, kSummed, false}}, [&seen, values] { seen = values[0]; });
             lane.wait();
             return seen;
           }},
      20, 50);
  EXPECT_EQ(fakegpu::nccl_counts().threads, threads);
}

TEST(NcclCommunicators, SumsAreRecordedByTheThreadThatRecords) {
  own_device();
  DeviceLane lane;
  const auto sums = comm::make_rank_sums(world(), true);
  RecordedStream stream;  // gone before the communicator
  sums->use_stream(stream.stream());
  float* values = ones(lane);
  ASSERT_EQ(stream.record([&] {
    for (int i = 0; i < 3; ++i) sums->add_up(values, kSummed, comm::DType::f32);
  }),
            cudaSuccess);
  for (int i = 0; i < 2; ++i) stream.launch();
  cudaStreamSynchronize(stream.stream());
  float want = 1;
  for (int i = 0; i < 2 * 3; ++i) want *= static_cast<float>(world().size());
  EXPECT_EQ(values[kSummed - 1], want);
  sums->use_stream(nullptr);
}

// NCCL waits for a communicator's kernels when it aborts it, here one that comes after a kernel of
// the other that does not end.
TEST(NcclCommunicators, AreAbortedTogether) {
  own_device();
  DeviceLane lane;
  float* values = ones(lane);
  const auto other_order =
      comm::Comm::split(world(), 0, world().size() - world().rank(), "other order");
  const auto before = fakegpu::nccl_counts();
  fakegpu::set_faults({.missing_at_call = 2});
  try {
    const auto made_first = comm::make_rank_sums(world(), true),
               stuck = comm::make_rank_sums(other_order, true);
    for (int i = 0; i < 2; ++i) stuck->add_up(values, kSummed, comm::DType::f32);
    made_first->add_up(values, kSummed, comm::DType::f32);
    throw std::runtime_error("of the program");
  } catch (const std::runtime_error&) {}
  fakegpu::set_faults({});
  EXPECT_EQ(fakegpu::nccl_counts().aborted - before.aborted, 2);
}

// NCCL waits for recordings when it aborts a communicator whose collectives they have.
TEST(NcclCommunicators, AreAbortedAfterTheirRecordings) {
  own_device();
  DeviceLane lane;
  RecordedStream stream;
  float* values = ones(lane);
  try {
    const auto sums = comm::make_rank_sums(world(), true, stream.stream());
    ASSERT_EQ(stream.record([&] { sums->add_up(values, kSummed, comm::DType::f32); }), cudaSuccess);
    stream.launch();
    throw std::runtime_error("of the program");
  } catch (const std::runtime_error&) {}
  EXPECT_FALSE(stream.recorded());
}

// The same where a communicator cannot be split off: the one that it was to be split from is lost.
TEST(NcclCommunicators, AreAbortedAfterTheirRecordingsWhereASplitFails) {
  own_device();
  DeviceLane lane;
  RecordedStream stream;
  float* values = ones(lane);
  const auto sums = comm::make_rank_sums(world(), true, stream.stream());
  ASSERT_EQ(stream.record([&] { sums->add_up(values, kSummed, comm::DType::f32); }), cudaSuccess);
  const auto before = fakegpu::nccl_counts();
  fakegpu::set_faults({.failing_split = true});
  EXPECT_THROW(comm::make_rank_sums(world(), true), InternalError);
  fakegpu::set_faults({});
  EXPECT_FALSE(stream.recorded());
  EXPECT_EQ(fakegpu::nccl_counts().aborted - before.aborted, 1);
}

// As NCCL tells devices apart.
TEST(NcclCommunicators, OfRanksThatShareADevice) {
  if (world().size() == 1) GTEST_SKIP() << "one rank";
  one_device_for_all();
  DeviceLane lane;
  const auto kind = [&] {
    return ExchangeUser(lane, five_stages(world().size()), lane.options())->kind();
  };
  const std::string staged = "MPI ring staged through host memory", nccl = "NCCL ring";
  EXPECT_EQ(kind(), staged);
  {
    const Variable host("NCCL_HOSTID", base::text("rank ", world().rank()));
    EXPECT_EQ(kind(), nccl);
  }
  {
    const Variable host("NCCL_HOSTID", "the same");
    EXPECT_EQ(kind(), staged);
  }
  const Variable several("NCCL_MULTI_RANK_GPU_ENABLE", "1");
  EXPECT_EQ(kind(), staged) << "an older NCCL";
  fakegpu::set_faults({.version = 23007});
  EXPECT_EQ(kind(), nccl);
  fakegpu::set_faults({});
}

}  // namespace
}  // namespace trireme::test
