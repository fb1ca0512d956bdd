// What one rank of a job of 4,096 ranks and 16,384 sequences builds of the whole job: milliseconds
// and bytes of each piece, for a trainer and a generator. No message is sent. Goal: 1 s and 64 MB
// in all.
//   build/release/perf/perf_scale
#include <algorithm>
#include <cstdio>

#include "support/counted_new.hpp"
#include "support/scale_job.hpp"
#include "trireme/base/stopwatch.hpp"

int main() {
  using namespace trireme;
  constexpr int repetitions = 3;
  const test::ScaleJob job;
  double most_seconds = 0, most_bytes = 0;
  for (const auto& [what, rank] : {std::pair("a trainer", 5), std::pair("a generator", 3000)}) {
    std::printf("%s, rank %d of %d\n%-40s %10s %12s %12s\n", what, rank, test::ScaleJob::ranks, "",
                "ms", "kB kept", "kB at peak");
    double seconds = 0, bytes = 0;
    for (const auto& piece : test::scale_pieces(job)) {
      const test::Footprint footprint = test::footprint_of([&] { return piece.build(rank); });
      double best = 1e9;
      for (int i = 0; i < repetitions; ++i) {
        const base::Stopwatch watch;
        const auto built = piece.build(rank);
        best = std::min(best, watch.seconds());
      }
      std::printf("%-40s %10.2f %12.1f %12.1f\n", piece.name, 1e3 * best,
                  1e-3 * static_cast<double>(footprint.kept),
                  1e-3 * static_cast<double>(footprint.peak));
      seconds += best;
      bytes += static_cast<double>(footprint.kept);
    }
    std::printf("%-40s %10.2f %12.1f\n\n", "all", 1e3 * seconds, 1e-3 * bytes);
    most_seconds = std::max(most_seconds, seconds);
    most_bytes = std::max(most_bytes, bytes);
  }
  std::printf("{\"seconds\": %.6f, \"megabytes\": %.3f}\n", most_seconds, 1e-6 * most_bytes);
}
