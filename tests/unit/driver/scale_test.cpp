// What a rank builds of a job of 4,096 ranks and 16,384 sequences fits into 64 MB, whether it
// trains or generates.
#include <gtest/gtest.h>

#include "support/counted_new.hpp"
#include "support/scale_job.hpp"
#include "support/world.hpp"

namespace trireme::test {
namespace {

constexpr int64_t most_bytes = 64'000'000;

TEST(AtScale, AllThatARankBuildsFitsIn64MB) {
  if (world().size() > 1) GTEST_SKIP() << "each rank would do the same";
  const ScaleJob job;
  for (const int rank : {5, 3000}) {
    int64_t kept = 0;
    for (const ScalePiece& piece : scale_pieces(job)) {
      const Footprint footprint = footprint_of([&] { return piece.build(rank); });
      EXPECT_GT(footprint.kept, 0) << piece.name << ": it is counted";
      EXPECT_LE(kept + footprint.peak, most_bytes) << "rank " << rank << ", " << piece.name;
      kept += footprint.kept;
    }
  }
}

}  // namespace
}  // namespace trireme::test
