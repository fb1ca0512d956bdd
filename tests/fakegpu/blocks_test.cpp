// The teams of exec_cuda.cuh on fibers, and that fibers find what is wrong in a kernel.
#include <gmock/gmock.h>

#include <algorithm>
#include <string>
#include <vector>

#include "fakegpu/cuda_language.hpp"
#include "fakegpu/fake_gpu.hpp"
#include "kernels/exec_cuda.cuh"

namespace trireme::kernels::exec {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<std::string> findings() {
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  return fakegpu::take_findings();
}

struct Blocks : testing::Test {
  Blocks() {
    fakegpu::set_delays({.legacy_us = 0, .others_us = 0});
    fakegpu::set_block_order({});
  }
};

// Two sums in a row, to all threads, and values that the team's threads write for each other.
struct Sums {
  int64_t values;
  int64_t* whole;   // [teams][threads]
  int64_t* twice;   // [teams][threads]
  int64_t* turned;  // [teams][values]
  int64_t* copies;  // [teams][values]

  template <class Team>
  void operator()(const Team& team, int64_t index) const {
    int64_t mine = 0;
    team.each(values, [&](int64_t i) {
      mine += i + index;
      turned[index * values + values - 1 - i] = i;
    });
    whole[index * team.size() + team.rank()] = team.sum(mine);
    twice[index * team.size() + team.rank()] = team.sum(2 * mine);
    team.each(values, [&](int64_t i) { copies[index * values + i] = turned[index * values + i]; });
  }
};

// How many of the results are wrong.
int64_t wrong_sums(int64_t teams, int threads, int64_t values) {
  std::vector<int64_t> whole(static_cast<size_t>(teams * threads)), twice(whole.size()),
      turned(static_cast<size_t>(teams * values)), copies(turned.size());
  EXPECT_EQ(
      start_teams(teams, threads,
                  Sums{values, whole.data(), twice.data(), turned.data(), copies.data()}, nullptr),
      cudaSuccess);
  EXPECT_THAT(findings(), IsEmpty());
  int64_t wrong = 0;
  for (int64_t i = 0; i < teams * threads; ++i) {
    const int64_t sum = values * (values - 1) / 2 + i / threads * values;
    wrong += whole[static_cast<size_t>(i)] != sum;
    wrong += twice[static_cast<size_t>(i)] != 2 * sum;
  }
  for (int64_t i = 0; i < teams * values; ++i)
    wrong += copies[static_cast<size_t>(i)] != values - 1 - i % values;
  return wrong;
}

TEST_F(Blocks, TeamsOfAnySize) {
  for (const int threads : {32, 64, 96, 256, 1024}) {
    for (const int64_t values : {0, 1, 31, 33, 1000})
      EXPECT_EQ(wrong_sums(5, threads, values), 0)
          << threads << " threads, " << values << " values";
  }
  EXPECT_EQ(wrong_sums(0, 64, 3), 0);
}

TEST_F(Blocks, MoreTeamsThanBlocks) {
  struct Count {
    int32_t* counts;
    void operator()(const BlockTeam& team, int64_t index) const {
      if (team.rank() == 0) ++counts[index];
    }
  };
  const int64_t teams = (int64_t{1} << 20) + 3;
  std::vector<int32_t> counts(static_cast<size_t>(teams));
  EXPECT_EQ(start_teams(teams, 32, Count{counts.data()}, nullptr), cudaSuccess);
  EXPECT_THAT(findings(), IsEmpty());
  EXPECT_EQ(std::count(counts.begin(), counts.end(), 1), teams);
}

// Each of them is missed in some order of the threads; the last one keeps apart from what comes
// after, which is nothing here.
TEST_F(Blocks, NoBarrierOfASumCanBeLeftOut) {
  EXPECT_EQ(wrong_sums(1, 256, 1000), 0);
  const int barriers = fakegpu::most_barriers();
  EXPECT_EQ(barriers, 6);
  for (int left_out = 0; left_out + 1 < barriers; ++left_out) {
    int64_t wrong = 0;
    for (unsigned seed = 1; seed <= 20; ++seed) {
      fakegpu::set_block_order({.seed = seed, .left_out = left_out});
      wrong += wrong_sums(8, 256, 1000);
    }
    EXPECT_GT(wrong, 0) << "barrier " << left_out;
  }
}

template <class Kernel>
void start(unsigned blocks, unsigned threads, Kernel kernel, cudaError_t expected = cudaSuccess) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  EXPECT_EQ(cudaLaunchKernelEx(&config, kernel), expected);
}

TEST_F(Blocks, BarriersThatSomeThreadsDoNotComeTo) {
  start(
      1, 64, +[] {
        if (threadIdx.x < 40) __syncthreads();
      });
  EXPECT_THAT(findings(),
              ElementsAre(AllOf(HasSubstr("void (*)()"), HasSubstr("24 of 64 threads ended"))));
  start(
      1, 64, +[] {
        if (threadIdx.x < 40) {
          __syncthreads();
        } else {
          __syncthreads();
        }
      });
  EXPECT_THAT(findings(), ElementsAre(HasSubstr("threads wait for barriers at")));
}

TEST_F(Blocks, ShufflesWithoutAllTheirLanes) {
  start(
      2, 64, +[] {
        if (threadIdx.x % 32 < 31) __shfl_down_sync(0xffffffffu, 1.f, 1);
      });
  EXPECT_THAT(findings(), ElementsAre(HasSubstr("waits for ever: thread 0 for the shuffle")));
  start(
      1, 48,
      +[] { __shfl_down_sync(0xffffffffu, 1.f, 1); });  // half of the second warp is not there
  EXPECT_THAT(findings(), ElementsAre(HasSubstr("waits for ever: thread 32 for the shuffle")));
  start(
      1, 32, +[] {
        if (threadIdx.x < 16) __shfl_down_sync(0xffffu, 1.f, 1);
      });
  EXPECT_THAT(findings(), ElementsAre(HasSubstr("lane 15 asks one that is not in its shuffle")));
}

TEST_F(Blocks, ShapesThatCudaRefuses) {
  start(
      1, 1025, +[] {}, cudaErrorInvalidConfiguration);
  start(
      1, 0, +[] {}, cudaErrorInvalidConfiguration);
  start(
      0, 32, +[] {}, cudaErrorInvalidConfiguration);
}

}  // namespace
}  // namespace trireme::kernels::exec
