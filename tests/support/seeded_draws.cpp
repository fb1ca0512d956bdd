// LibTorch's generator begins with a number of the machine. Here every test begins with the same
// one: what a test draws is the same in every run, alone or after others.
#include "torch/torch.hpp"

#include <gtest/gtest.h>

namespace {

class SeededDraws : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo&) override { at::manual_seed(20261123); }
};

[[maybe_unused]] const bool appended = [] {
  testing::UnitTest::GetInstance()->listeners().Append(new SeededDraws);
  return true;
}();

}  // namespace
