// Messages from device to device: what they bring, the events that order them, and what becomes of
// ranks that do not agree about them.
#include <gmock/gmock.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "comm/shard_exchange_parts.hpp"
#include "fakegpu/device_lane.hpp"
#include "support/world.hpp"
#include "trireme/base/error.hpp"
#include "trireme/comm/device_messages.hpp"

namespace trireme::test {
namespace {

using comm::DeviceMessage;
using fakegpu::During;

// Of the i-th message from one rank to another in a round.
float value_of(int from, int to, int round, int i) {
  return static_cast<float>(((from * 10 + to) * 10 + round) * 10 + i);
}
constexpr int64_t lengths[] = {3, 20000, 1, 4097};  // floats: several pieces of the fake NCCL

// Every rank sends some to every other one in each round, from one of two places in turn.
class Exchange {
 public:
  explicit Exchange(DeviceLane& lane)
      : lane_(lane), messages_(comm::make_device_messages(world())) {
    for (const int64_t length : lengths) floats_ += length;
    const int64_t half = floats_ * world().size();
    auto* memory = reinterpret_cast<float*>(messages_->reserve(4 * half * int64_t{4}));
    for (int i = 0; i < 2; ++i) {
      out_[i] = memory + i * half;
      in_[i] = memory + (2 + i) * half;
    }
  }

  void begin(int round) {
    float* out = out_[round % 2];
    const int64_t half = floats_ * world().size();
    lane_.run({{out, half, true}}, [=, this] {
      each([&](int peer, int i, int64_t at) {
        std::fill_n(out + at, lengths[i], value_of(world().rank(), peer, round, i));
      });
    });
    std::vector<DeviceMessage> sends, receives;
    each([&](int peer, int i, int64_t at) {
      sends.push_back({peer, bytes(out + at), lengths[i] * int64_t{4}});
      receives.push_back({peer, bytes(in_[round % 2] + at), lengths[i] * int64_t{4}});
    });
    const During during("begin");
    messages_->begin(sends, receives);
  }
  void end(int round) {
    {
      const During during("end");
      messages_->end();
    }
    float* in = in_[round % 2];
    each([&](int peer, int i, int64_t at) {
      lane_.run({{in + at, lengths[i], false}}, [=, this] {
        for (int64_t k = 0; k < lengths[i]; ++k)
          wrong_ += in[at + k] != value_of(peer, world().rank(), round, i);
      });
    });
  }
  int wrong() {
    lane_.wait();
    return wrong_;
  }

 private:
  static std::byte* bytes(float* values) { return reinterpret_cast<std::byte*>(values); }
  template <class Body>
  void each(const Body& body) const {
    for (int peer = 0; peer < world().size(); ++peer) {
      int64_t at = floats_ * peer;
      for (int i = 0; i < 4 && peer != world().rank(); at += lengths[i++]) body(peer, i, at);
    }
  }

  DeviceLane& lane_;
  std::unique_ptr<comm::DeviceMessages> messages_;
  int64_t floats_ = 0;
  float *out_[2] = {}, *in_[2] = {};
  int wrong_ = 0;
};

int exchange_rounds(DeviceLane& lane) {
  Exchange exchange(lane);
  constexpr int rounds = 5;
  for (int round = 0; round <= rounds; ++round) {
    if (round < rounds) exchange.begin(round);
    if (round > 0) exchange.end(round - 1);
  }
  return exchange.wrong();
}

TEST(DeviceMessages, ComeInTheirOrderInRoundsThatOverlap) {
  own_device();
  DeviceLane lane;
  EXPECT_EQ(exchange_rounds(lane), 0);
}

// Each of their events, left out.
TEST(DeviceMessages, HaveNoEventTooMany) {
  if (world().size() == 1) GTEST_SKIP() << "one rank has no messages";
  using Call = fakegpu::Edge::Call;
  for (const fakegpu::Edge& edge :
       {fakegpu::Edge{"begin", Call::record, 0}, fakegpu::Edge{"begin", Call::wait, 0},
        fakegpu::Edge{"begin", Call::record, 1}, fakegpu::Edge{"end", Call::wait, 0}}) {
    own_device();
    DeviceLane lane;
    fakegpu::leave_out(edge);
    static_cast<void>(exchange_rounds(lane));
    EXPECT_GT(fakegpu::left_out(), 0) << edge.during << edge.index;
    fakegpu::leave_out(std::nullopt);
    EXPECT_THAT(fakegpu::take_findings(), testing::Not(testing::IsEmpty()))
        << edge.during << edge.index;
  }
}

TEST(DeviceMessages, AreRefusedWhereRanksShareADevice) {
  if (world().size() == 1) GTEST_SKIP() << "one rank";
  std::vector<int> all, first{0};
  for (int rank = 0; rank < world().size(); ++rank) all.push_back(rank);
  own_device();
  EXPECT_TRUE(comm::devices_take_messages(world(), all));
  one_device_for_all();
  EXPECT_FALSE(comm::devices_take_messages(world(), all));
  EXPECT_TRUE(comm::devices_take_messages(world(), first)) << "the others have no part";
}

// What the watchdog hears of messages that do not fit; the program ends it by an exception.
std::string heard(DeviceLane& lane, int64_t sent, int64_t received) {
  const auto before = fakegpu::nccl_counts();
  std::string trouble;
  try {
    const auto messages = comm::make_device_messages(world());
    std::byte* memory = messages->reserve(sent + received);
    const int next = (world().rank() + 1) % world().size(),
              last = (world().rank() + world().size() - 1) % world().size();
    std::vector<DeviceMessage> sends, receives;
    if (sent > 0) sends.push_back({next, memory, sent});
    if (received > 0) receives.push_back({last, memory + sent, received});
    messages->begin(sends, receives);
    messages->end();
    const bool fail = sent > 0 && received > 0;
    constexpr int looks = 1000;
    for (int i = 0; trouble.empty() && (fail || i < looks); ++i)
      trouble = comm::device_support().find_trouble().value_or("");
    cudaEvent_t end = nullptr;
    cudaEventCreateWithFlags(&end, cudaEventDisableTiming);
    cudaEventRecord(end, nullptr);
    EXPECT_EQ(cudaEventQuery(end), cudaErrorNotReady);
    static_cast<void>(cudaGetLastError());
    cudaEventDestroy(end);
    throw std::runtime_error("of the program");
  } catch (const std::runtime_error&) {}
  EXPECT_EQ(fakegpu::nccl_counts().aborted - before.aborted, 1);
  lane.wait();
  return trouble;
}

TEST(DeviceMessages, OfDifferentLengthsAreAnError) {
  if (world().size() == 1) GTEST_SKIP() << "one rank has no messages";
  own_device();
  DeviceLane lane;
  EXPECT_THAT(heard(lane, 100, 50), testing::HasSubstr("ranks made different calls"));
}

// They go on for ever, and NCCL knows of no error: the watchdog ends such a job.
TEST(DeviceMessages, ThatNobodyReceivesEndWithTheirCommunicator) {
  if (world().size() == 1) GTEST_SKIP() << "one rank has no messages";
  own_device();
  DeviceLane lane;
  EXPECT_EQ(heard(lane, 100, 0), "");
  EXPECT_EQ(heard(lane, 0, 100), "");
}

TEST(DeviceMessages, OfTheHostsMemoryAreRefused) {
  if (world().size() == 1) GTEST_SKIP() << "one rank has no messages";
  own_device();
  DeviceLane lane;
  std::vector<std::byte> host(64);
  const std::vector<DeviceMessage> message{
      {(world().rank() + 1) % world().size(), host.data(), 64}};
  EXPECT_THROW(comm::make_device_messages(world())->begin(message, {}), UserError);
}

// Parts add up to the whole, in any pieces; words that changed places, and a bit, change the sum.
TEST(DeviceRowSums, FollowEveryWordAndItsPlace) {
  own_device();
  DeviceLane lane;
  constexpr int64_t rows = 300, columns = 4000, words = rows * columns;
  auto* values = reinterpret_cast<uint16_t*>(lane.allocate(words / 2));
  lane.run({{reinterpret_cast<float*>(values), words / 2, true}}, [=] {
    for (int64_t i = 0; i < words; ++i) values[i] = static_cast<uint16_t>(i * 40503);
  });
  const auto* bytes = reinterpret_cast<const std::byte*>(values);
  const auto at = [&](int64_t word) { return bytes + 2 * word; };
  const auto sum = [&](const std::vector<comm::DeviceRows>& parts) {
    uint64_t all = 0;
    for (const uint64_t one : comm::sum_rows(parts)) all += one;
    return all;
  };
  const uint64_t whole = sum({{bytes, rows, 2 * columns, 2 * columns, 0}});
  uint64_t expected = 0;
  for (int64_t i = 0; i < words; ++i)
    expected +=
        static_cast<uint64_t>(static_cast<uint16_t>(i * 40503)) * static_cast<uint64_t>(2 * i + 1);
  EXPECT_EQ(whole, expected);
  EXPECT_EQ(sum({{bytes, 100, 2 * columns, 2 * columns, 0},
                 {at(100 * columns), 200, 2 * columns, 2 * columns, 100 * columns}}),
            whole);
  std::vector<comm::DeviceRows> by_row;
  for (int64_t r = 0; r < rows; ++r)
    by_row.push_back({at(r * columns), 1, 2 * columns, 0, r * columns});
  EXPECT_EQ(sum(by_row), whole);
  // The first half of each row, dense, is what the same words say elsewhere.
  uint64_t half = 0, number = 7;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns / 2; ++c) half += values[r * columns + c] * (2 * number++ + 1);
  }
  const std::vector<comm::DeviceRows> halves{{bytes, rows, columns, 2 * columns, 7}};
  EXPECT_EQ(sum(halves), half);
  lane.run({{reinterpret_cast<float*>(values), words / 2, true}},
           [=] { std::swap(values[5], values[77777]); });
  EXPECT_NE(sum({{bytes, rows, 2 * columns, 2 * columns, 0}}), whole);
  EXPECT_EQ(comm::sum_rows({}).size(), 0u);
}

}  // namespace
}  // namespace trireme::test
