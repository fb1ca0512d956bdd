// Sequences are dealt to many ranks with work and memory for the sequences, not for sequences x
// ranks: allocations are counted by the operators new of this program.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "support/counted_new.hpp"
#include "trireme/learn/exchange.hpp"
#include "trireme/learn/training_set.hpp"

namespace trireme::driver {
namespace {

using test::allocated_bytes;
using test::allocations;

constexpr int64_t sequences = 8192;
constexpr int ranks = 1024;
// Karmarkar and Karp's method took 32 bytes for each sequence and rank, 268 MB.
constexpr int64_t most_bytes = 256 * (sequences + ranks);
constexpr int64_t most_allocations = 2 * (sequences + ranks);

int64_t length_of(int64_t i) { return 200 + (i * 7919) % 1801; }

void expect_balanced(const std::vector<int64_t>& tokens, const std::vector<int64_t>& counts) {
  const int64_t total = std::accumulate(tokens.begin(), tokens.end(), int64_t{0});
  EXPECT_LT(*std::max_element(tokens.begin(), tokens.end()) * ranks, total + total / 4)
      << "no rank has a quarter more than the mean";
  EXPECT_EQ(std::count(counts.begin(), counts.end(), sequences / ranks), ranks);
}

TEST(ManyRanks, SequencesAreSpreadInLinearMemory) {
  learn::SequenceList listed;
  for (int64_t i = 0; i < sequences; ++i)
    listed.push_back({static_cast<uint64_t>(i), length_of(i)});
  std::vector<int> targets(ranks);
  std::iota(targets.begin(), targets.end(), 0);
  const int64_t bytes = allocated_bytes, count = allocations;
  const std::vector<int> rank_of = learn::spread_over(listed, targets);
  EXPECT_LT(allocated_bytes - bytes, most_bytes);
  EXPECT_LT(allocations - count, most_allocations);
  EXPECT_GT(allocations - count, 0) << "they are counted";
  std::vector<int64_t> tokens(ranks), counts(ranks);
  for (size_t i = 0; i < listed.size(); ++i) {
    tokens[static_cast<size_t>(rank_of[i])] += listed[i].tokens;
    ++counts[static_cast<size_t>(rank_of[i])];
  }
  expect_balanced(tokens, counts);
}

TEST(ManyRanks, RowsAreSharedOutInLinearMemory) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < sequences; ++i) lengths.push_back(length_of(i));
  std::vector<int64_t> tokens(ranks), counts(ranks);
  for (int rank = 0; rank < ranks; rank += 31) {
    const int64_t bytes = allocated_bytes, count = allocations;
    const std::vector<int64_t> mine = learn::share_of(lengths, ranks, rank);
    EXPECT_LT(allocated_bytes - bytes, most_bytes);
    EXPECT_LT(allocations - count, most_allocations);
    EXPECT_EQ(std::ssize(mine), sequences / ranks);
  }
}

}  // namespace
}  // namespace trireme::driver
