// The kernel that sums rows of weights (comm/shard_exchange_add.cu), thread by thread.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "comm/cuda_support.hpp"

namespace trireme::comm {
namespace {

TEST(RowSums, OfRowsAroundABlocksThreads) {
  constexpr int64_t stride = 700, most_rows = 3;  // words
  std::vector<uint16_t> values(stride * most_rows);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<uint16_t>(65535 - 977 * i);
  std::vector<DeviceRows> rows;
  std::vector<uint64_t> expected;
  for (const int64_t words : {1, 31, 33, 255, 256, 257, 700}) {
    for (int64_t count = 1; count <= most_rows; ++count) {
      const int64_t first = 1000 * count;
      rows.push_back(
          {reinterpret_cast<const std::byte*>(values.data()), count, 2 * words, 2 * stride, first});
      uint64_t& sum = expected.emplace_back();
      for (int64_t i = 0; i < count * words; ++i)
        sum += static_cast<uint64_t>(values[static_cast<size_t>(i / words * stride + i % words)]) *
               static_cast<uint64_t>(2 * (first + i) + 1);
    }
  }
  std::vector<uint64_t> sums(rows.size());
  ASSERT_EQ(launch_sum_rows(sums.data(), rows.data(), rows.data(),
                            static_cast<int64_t>(rows.size()), nullptr),
            cudaSuccess);
  cudaStreamSynchronize(nullptr);
  EXPECT_EQ(sums, expected);
  EXPECT_EQ(launch_sum_rows(nullptr, nullptr, nullptr, 0, nullptr), cudaSuccess);
}

}  // namespace
}  // namespace trireme::comm
