#include "torch/torch.hpp"

#include <c10/core/AllocatorConfig.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "trireme/base/allocation.hpp"
#include "trireme/machine/device.hpp"

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

// Passes differ in size: segments of LibTorch's memory on GPUs grow, unless the environment says
// something.
TEST(Allocator, GrowsItsSegments) {
  using Config = c10::CachingAllocator::AcceleratorAllocatorConfig;
  ASSERT_FALSE(Config::use_expandable_segments());
  for (const char* name : {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}) {
    setenv(name, "", 1);
    set_allocator();
    EXPECT_FALSE(Config::use_expandable_segments()) << name;
    unsetenv(name);
  }
  set_allocator();
  EXPECT_TRUE(Config::use_expandable_segments());
  c10::CachingAllocator::setAllocatorSettings("expandable_segments:False");
}

}  // namespace
}  // namespace trireme::machine
