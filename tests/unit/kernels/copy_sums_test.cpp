#include "torch/torch.hpp"

#include "trireme/kernels/copy_sums.hpp"

#include <gtest/gtest.h>

namespace trireme::kernels {
namespace {

// Whole matrices, columns of one, rows that are no whole words; a difference of one bit is seen.
TEST(CopySums, SeeABitThatDiffers) {
  for (const auto type : {at::kBFloat16, at::kFloat}) {
    for (const int64_t columns : {int64_t{16}, int64_t{7}}) {
      const at::Tensor whole = at::randn({6, 3 * columns}).to(type);
      const at::Tensor original = whole.narrow(1, columns, columns), copy = original.clone(),
                       vector = at::randn({5}).to(type);
      CopySums sums(2, at::kCPU);
      sums.add(0, vector, vector.clone());
      sums.add(1, original, copy);
      EXPECT_EQ(sums.first_difference(), -1);
      copy.narrow(0, 5, 1).narrow(1, columns - 1, 1).neg_();
      sums.add(1, original, copy);
      EXPECT_EQ(sums.first_difference(), 1) << type << ' ' << columns;
    }
  }
}

TEST(CopySums, OfNothingDifferNowhere) { EXPECT_EQ(CopySums(0, at::kCPU).first_difference(), -1); }

}  // namespace
}  // namespace trireme::kernels
