// Which type a run computes in: by the instruction sets of all ranks, the deck and the checkpoint.
#include "torch/torch.hpp"

#include "trireme/machine/compute_type.hpp"

#include <gtest/gtest.h>

#include <array>

#include "support/world.hpp"
#include "trireme/base/isa.hpp"

namespace trireme::test {
namespace {

using config::ComputeType;
using config::DType;
using machine::ComputeDevice;
using machine::decide_compute_type;

const machine::ComputeDevice native{true, "avx512_bf16"};
const machine::ComputeDevice older{false, "avx2"};

TEST(ComputeType, AutoTakesBf16WhereEveryRankMultipliesIt) {
  const std::array all{native, native}, mixed{native, older};
  const auto bf16 = machine::decide_compute_type(ComputeType::automatic, std::nullopt, all);
  EXPECT_EQ(bf16.type, DType::bf16);
  EXPECT_FALSE(bf16.warning);
  EXPECT_EQ(bf16.reason, "model.dtype = \"auto\"; all ranks multiply bf16 natively: avx512_bf16");
  const auto fp32 = machine::decide_compute_type(ComputeType::automatic, std::nullopt, mixed);
  EXPECT_EQ(fp32.type, DType::f32);
  EXPECT_FALSE(fp32.warning);
  EXPECT_EQ(fp32.reason,
            "model.dtype = \"auto\"; 1 of 2 ranks do not multiply bf16 natively (the first is rank "
            "1: avx2)");
}

TEST(ComputeType, AResumedRunKeepsItsType) {
  const std::array capable{native}, old{older};
  EXPECT_EQ(machine::decide_compute_type(ComputeType::automatic, DType::f32, capable).type,
            DType::f32);
  const auto kept = machine::decide_compute_type(ComputeType::automatic, DType::bf16, old);
  EXPECT_EQ(kept.type, DType::bf16);
  EXPECT_TRUE(kept.warning);
  EXPECT_EQ(kept.reason.rfind("the run began in it; 1 of 1 rank does not multiply bf16 natively "
                              "(the first is rank 0: avx2): ",
                              0),
            0u)
      << kept.reason;
}

TEST(ComputeType, TheDeckDecidesAndIsWarned) {
  const std::array old{older, native};
  const std::array capable{native};
  const auto insists = machine::decide_compute_type(ComputeType::bf16, std::nullopt, old);
  EXPECT_EQ(insists.type, DType::bf16);
  EXPECT_TRUE(insists.warning);
  EXPECT_EQ(insists.reason,
            "model.dtype = \"bf16\"; 1 of 2 ranks do not multiply bf16 natively (the first is rank "
            "0: avx2): weights and activations are kept "
            "in bf16 and multiplied in fp32, which is no faster than fp32; model.dtype = \"auto\" "
            "or \"fp32\" takes fp32 here");
  EXPECT_FALSE(machine::decide_compute_type(ComputeType::bf16, std::nullopt, capable).warning);
  const auto changed = machine::decide_compute_type(ComputeType::fp32, DType::bf16, capable);
  EXPECT_EQ(changed.type, DType::f32);
  EXPECT_EQ(changed.reason, "model.dtype = \"fp32\", instead of bf16 in which the run began");
}

// Each rank knows its own processor only.
TEST(ComputeType, RanksOfDifferentProcessorsAgree) {
  const auto world = test::world();
  for (int without = -1; without < world.size(); ++without) {
    const auto got = machine::agree_on_compute_type(
        ComputeType::automatic, std::nullopt, world.rank() == without ? older : native, world);
    EXPECT_EQ(got.type, without < 0 ? DType::bf16 : DType::f32)
        << "rank " << without << " has no bf16";
    if (without >= 0) {
      EXPECT_NE(got.reason.find("the first is rank " + std::to_string(without)), std::string::npos)
          << got.reason;
    }
    EXPECT_TRUE(world.all(
        got == machine::agree_on_compute_type(ComputeType::automatic, std::nullopt,
                                              world.rank() == without ? older : native, world)));
  }
}

TEST(ComputeType, FollowsTheInstructionSetInUse) {
  EXPECT_TRUE(machine::compute_device(at::kCUDA).native_bf16);
  base::use_isa(base::Isa::portable);
  const machine::ComputeDevice portable{false, "portable"};
  const auto device = machine::compute_device(at::kCPU);
  base::use_isa(base::best_isa());
  EXPECT_EQ(device, portable);
  EXPECT_EQ(machine::compute_device(at::kCPU).native_bf16,
            base::best_isa() == base::Isa::avx512_bf16);
}

TEST(ComputeType, IsMeasuredInMilliseconds) {
  const double ratio = machine::measure_bf16_ratio();
  EXPECT_GT(ratio, 0);
  EXPECT_TRUE(std::isfinite(ratio));
}

}  // namespace
}  // namespace trireme::test
