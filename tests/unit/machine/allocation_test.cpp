#include "torch/torch.hpp"

#include <gtest/gtest.h>

#include "trireme/base/allocation.hpp"

namespace trireme::machine {
namespace {

// This LibTorch's own words.
TEST(Allocation, a_tensor_that_cannot_be_had_is_recognised) {
  constexpr int64_t bytes = int64_t{1} << 60;
  try {
    at::empty({bytes}, at::kByte);
    FAIL() << "an exbibyte";
  } catch (const std::exception& error) {
    const auto failure = base::failed_allocation(error);
    ASSERT_TRUE(failure) << error.what();
    EXPECT_FALSE(failure->device);
    EXPECT_EQ(failure->bytes, bytes);
  }
}

}  // namespace
}  // namespace trireme::machine
