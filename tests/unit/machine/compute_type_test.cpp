// Which type a run computes in: by the instruction sets of all ranks, the deck and the checkpoint.
#include "torch/torch.hpp"

#include "trireme/machine/compute_type.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <utility>
#include <vector>

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

// Probes of a rank that trains and generates; each of `products` and `decoding` a round of it.
machine::ComputeProbe probe_of(std::vector<machine::TypeSeconds> products,
                               std::vector<machine::TypeSeconds> decoding) {
  return {std::move(products), std::move(decoding)};
}
machine::ComputeProbe steady(machine::TypeSeconds product, machine::TypeSeconds decode) {
  return probe_of({5, product}, {5, decode});
}

// 1 s of products and 1 s of decode steps at a probe's 1 s.
plan::ComputeWork even_work() {
  return {.products = 1, .decode_steps = 1, .decode_rows = 8, .decode_weights = 1};
}

DType chosen(const plan::ComputeWork& work, std::vector<machine::ComputeProbe> ranks) {
  const std::array capable{native};
  const machine::ComputeProbes probes{work, std::move(ranks)};
  return decide_compute_type(ComputeType::automatic, std::nullopt, capable, &probes).type;
}

TEST(ComputeType, ProbesMakeFp32OfBf16FromAGainOf15PerCentOn) {
  EXPECT_EQ(chosen(even_work(), {steady({1, 1.16}, {1, 1.16})}), DType::f32);
  EXPECT_EQ(chosen(even_work(), {steady({1, 1.14}, {1, 1.14})}), DType::bf16);
  EXPECT_EQ(chosen(even_work(), {steady({1, 1}, {1, 1})}), DType::bf16);
  EXPECT_EQ(chosen(even_work(), {steady({2, 1}, {2, 1})}), DType::bf16);
  EXPECT_EQ(chosen(even_work(), {steady({1, 1.5}, {1, 0.6})}), DType::bf16) << "2.1 s and 2 s";
  EXPECT_EQ(chosen(even_work(), {steady({1, 1.5}, {1, 0.9})}), DType::f32) << "2.4 s and 2 s";
}

// A processor that multiplies fp32 faster and reads bf16 faster, as a Xeon without matrix units.
TEST(ComputeType, TheDeckWeighsProductsAgainstDecodeSteps) {
  const auto xeon = steady({1 / 279e9, 1 / 171e9}, {1.0, 0.5});
  plan::ComputeWork trains = even_work(), writes = even_work();
  trains.products = 10 * 279e9;
  writes.products = 0.1 * 279e9;
  EXPECT_EQ(chosen(trains, {xeon}), DType::f32);
  EXPECT_EQ(chosen(writes, {xeon}), DType::bf16);
  trains.decode_steps = 100;
  EXPECT_EQ(chosen(trains, {xeon}), DType::bf16) << "66 s and 110 s";
  trains.at_once = true;
  EXPECT_EQ(chosen(trains, {xeon}), DType::bf16) << "the generators are the longer part";
  trains.decode_steps = 1;
  EXPECT_EQ(chosen(trains, {xeon}), DType::f32) << "the trainers are";
}

TEST(ComputeType, ABusyNeighbourDisturbsSomeProbesOfMany) {
  using Rounds = std::vector<machine::TypeSeconds>;
  const Rounds quiet(5, {1, 1});
  EXPECT_EQ(chosen(even_work(), {probe_of({{1, 1}, {1, 9}, {1, 1}, {1, 9}, {1, 1}}, quiet)}),
            DType::bf16);
  EXPECT_EQ(chosen(even_work(), {probe_of({{9, 1.5}, {1, 1.5}, {9, 1.5}, {1, 1.5}, {1, 1.5}},
                                          Rounds(5, {1, 1.5}))}),
            DType::f32);
  EXPECT_EQ(chosen(even_work(), {probe_of(Rounds(5, {3, 4.5}), Rounds(5, {3, 4.5}))}), DType::f32)
      << "one that slows all alike";
}

// Ranks have one role or two, and all wait for the slowest.
TEST(ComputeType, TheSlowestRankOfEachRoleCounts) {
  const auto trainer = probe_of({{1, 1.5}}, {}), generator = probe_of({}, {{1, 0.5}});
  EXPECT_EQ(chosen(even_work(), {trainer, generator}), DType::bf16) << "2 s and 2 s";
  EXPECT_EQ(chosen(even_work(), {trainer, probe_of({{4, 6}}, {}), generator}), DType::f32);
  EXPECT_EQ(chosen(even_work(), {probe_of({{0.1, 1.5}}, {}), probe_of({{2, 1}}, {}), generator}),
            DType::bf16);
}

TEST(ComputeType, SaysBothFigures) {
  const std::array capable{native};
  const machine::ComputeProbes probes{
      {.products = 2e12, .decode_steps = 100, .decode_rows = 64, .decode_weights = 1e8},
      {steady({1 / 279e9, 1 / 171e9}, {1.2e-10, 0.9e-10})}};
  const auto decision = decide_compute_type(ComputeType::automatic, std::nullopt, capable, &probes);
  EXPECT_EQ(decision.type, DType::f32);
  EXPECT_FALSE(decision.warning);
  EXPECT_EQ(decision.reason,
            "model.dtype = \"auto\"; all ranks multiply bf16 natively: avx512_bf16; measured, bf16 "
            "and fp32: products at 171 and 279 GFLOP/s, decode steps of 64 sequences in 9.00 and "
            "12.0 ms, an iteration's together in 12.6 and 8.37 s");
}

// What the deck or the checkpoint says is not weighed, nor what one rank alone could multiply.
TEST(ComputeType, ProbesAreForChoicesThatAreOpen) {
  const std::array capable{native};
  const std::array mixed{native, older};
  const machine::ComputeProbes probes{even_work(), {steady({1, 9}, {1, 9})}};
  const auto type = [&](ComputeType asked, std::optional<DType> stored,
                        std::span<const ComputeDevice> ranks) {
    return decide_compute_type(asked, stored, ranks, &probes).type;
  };
  EXPECT_EQ(type(ComputeType::automatic, DType::bf16, capable), DType::bf16);
  EXPECT_EQ(type(ComputeType::bf16, std::nullopt, capable), DType::bf16);
  EXPECT_EQ(type(ComputeType::automatic, std::nullopt, mixed), DType::f32);

  plan::ComputeWork long_one = even_work(), short_one = even_work();
  long_one.products = 1e13;
  short_one.products = 1e9;
  const auto wanted = [](ComputeType asked, std::optional<DType> stored,
                         std::span<const ComputeDevice> ranks, bool deterministic,
                         const plan::ComputeWork& work) {
    return machine::wants_probes(asked, stored, ranks, deterministic, work);
  };
  EXPECT_TRUE(wanted(ComputeType::automatic, std::nullopt, capable, false, long_one));
  EXPECT_FALSE(wanted(ComputeType::automatic, std::nullopt, capable, true, long_one));
  EXPECT_FALSE(wanted(ComputeType::automatic, DType::bf16, capable, false, long_one));
  EXPECT_FALSE(wanted(ComputeType::automatic, DType::f32, capable, false, long_one));
  EXPECT_FALSE(wanted(ComputeType::bf16, std::nullopt, capable, false, long_one));
  EXPECT_FALSE(wanted(ComputeType::fp32, std::nullopt, capable, false, long_one));
  EXPECT_FALSE(wanted(ComputeType::automatic, std::nullopt, mixed, false, long_one));
  EXPECT_FALSE(wanted(ComputeType::automatic, std::nullopt, capable, false, short_one));
}

// Probes of this processor: of the roles that a rank has, the same number of both types.
TEST(ComputeType, ProbesThisProcessor) {
  const auto world = test::world();
  const bool trainer = world.rank() % 2 == 0;
  const auto probe = machine::probe(world, {trainer, !trainer}, machine::ThreadPlan{}, 8);
  EXPECT_EQ(probe.products.empty(), !trainer);
  EXPECT_EQ(probe.decoding.empty(), trainer);
  for (const DType type : {DType::f32, DType::bf16}) {
    const auto speed = probe.speed(type);
    EXPECT_GT(trainer ? speed.product : speed.decode, 0);
    EXPECT_TRUE(std::isfinite(speed.product) && std::isfinite(speed.decode));
  }
}

}  // namespace
}  // namespace trireme::test
