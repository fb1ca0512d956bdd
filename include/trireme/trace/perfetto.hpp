// trace.json: Chrome's trace-event format, which Perfetto opens. One process per rank, one track
// per thread, nested slices, counters, all ranks on the clock of rank 0. Times are microseconds
// since the start of rank 0.
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "trireme/trace/region.hpp"
#include "trireme/trace/table.hpp"

namespace trireme::trace {

struct RankIdentity {
  int rank = 0;
  std::string roles;  // "trainer, generator"
  std::string host;
  // Seconds to add to this rank's monotonic_seconds() to get rank 0's (0 on the same node); `comm`
  // measures it.
  double clock_offset = 0;
  // monotonic_seconds() of rank 0 at its start: the zero of the time axis.
  double origin = 0;
};

// This rank's events as JSON objects separated by ",\n". Regions that are still open are included
// up to now.
std::string trace_events(const RankIdentity& identity);

// The whole file from the fragments of all ranks.
std::string merge_trace(std::span<const std::string> fragments);

// monotonic_seconds() when this process began to record.
double start_seconds();

}  // namespace trireme::trace
