#include <gtest/gtest.h>

#include <algorithm>

#include "trireme/base/error.hpp"
#include "trireme/base/samples.hpp"

namespace trireme {
namespace {

Samples some(int64_t count) {
  Samples samples;
  for (int64_t i = 0; i < count; ++i) {
    samples.id.push_back(request_id(3, (count - i) % 7, i));
    samples.prompt_row.push_back(10 * i);
    samples.prompt_len.push_back(static_cast<int32_t>(i));
    samples.finish_reason.push_back(i % 2 ? FinishReason::stop : FinishReason::length);
    for (int64_t t = 0; t < 2 * i; ++t) {
      samples.ids.push_back(static_cast<int32_t>(100 * i + t));
      samples.action_mask.push_back(t >= i);
      samples.log_probs.push_back(-0.5f * static_cast<float>(t));
      samples.version.push_back(t >= i ? 4 : -1);
    }
    samples.cu_seqlens.push_back(static_cast<int64_t>(samples.ids.size()));
  }
  samples.reward.assign(static_cast<size_t>(count), 1.5f);
  samples.reward_parts.assign(2, std::vector<float>(static_cast<size_t>(count), 0.25f));
  return samples;
}

TEST(Samples, BytesRoundTrip) {
  for (int64_t count : {0, 1, 9}) {
    const auto samples = some(count);
    samples.check();
    EXPECT_EQ(Samples::from_bytes(samples.to_bytes()), samples);
  }
}

TEST(Samples, MalformedBytesAreRefused) {
  const auto bytes = some(4).to_bytes();
  for (size_t cut = 0; cut < bytes.size(); cut += 3) EXPECT_THROW(Samples::from_bytes(bytes.substr(0, cut)), UserError);
  EXPECT_THROW(Samples::from_bytes(bytes + "x"), UserError);
}

TEST(Samples, SelectAndSortKeepColumnsTogether) {
  const auto samples = some(6);
  const auto sorted = samples.sorted();
  sorted.check();
  EXPECT_TRUE(std::is_sorted(sorted.id.begin(), sorted.id.end()));
  for (int64_t i = 0; i < sorted.size(); ++i) {
    const auto row = sorted.prompt_row[static_cast<size_t>(i)] / 10;
    EXPECT_EQ(sorted.length(i), samples.length(row));
    EXPECT_TRUE(sorted.length(i) == 0 || sorted.tokens_of(i)[0] == 100 * row);
  }
}

TEST(Samples, RequestIdsSortByIterationThenPromptThenSample) {
  EXPECT_LT(request_id(1, 1000, 100, 3), request_id(2, 0, 0));
  EXPECT_LT(request_id(1, 5, 4095), request_id(1, 6, 0));
  EXPECT_LT(request_id(1, 5, 3, 7), request_id(1, 5, 4, 0));
  EXPECT_THROW(request_id(1, 1 << 20, 0), UserError);
  EXPECT_THROW(request_id(1, 0, 4096), UserError);
}

}  // namespace
}  // namespace trireme
