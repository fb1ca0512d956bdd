// Large tensors lie in base::tensor_blocks(), small ones in the heap.
#include "torch/torch.hpp"

#include "trireme/kernels/tensor_memory.hpp"

#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <exception>

#include "trireme/base/allocation.hpp"
#include "trireme/base/heap.hpp"

namespace trireme::kernels {
namespace {

constexpr int64_t floats = int64_t{1} << 20;

TEST(TensorMemory, LargeTensorsHaveBlocksOfTheirOwn) {
  use_block_cache();
  const size_t before = base::tensor_blocks().in_use();
  at::Tensor large = at::ones({floats});
  EXPECT_EQ(base::tensor_blocks().in_use(), before + 4 * floats);
  const at::Tensor small = at::ones({16});
  EXPECT_EQ(base::tensor_blocks().in_use(), before + 4 * floats);

  EXPECT_EQ(large.clone().sum().item<float>(), static_cast<float>(floats));
  large.reset();
  EXPECT_EQ(base::tensor_blocks().in_use(), before);
  const size_t waiting = base::tensor_blocks().waiting();
  large = at::empty({floats - 1024});  // a page less
  EXPECT_EQ(base::tensor_blocks().in_use(), before + 4 * floats - 4096);
  EXPECT_EQ(base::tensor_blocks().waiting(), waiting - 4 * floats);
}

TEST(TensorMemory, SaysHowMuchIsMissing) {
  use_block_cache();
  try {
    at::empty({int64_t{1} << 56});
    FAIL() << "2^58 bytes were found";
  } catch (const std::exception& error) {
    EXPECT_TRUE(base::failed_allocation(error).has_value()) << error.what();
  }
}

}  // namespace
}  // namespace trireme::kernels
