// The end table: each rank's record, gathered, reduced per role, and the advice that follows
// from it. Nothing here communicates: the caller hands in a gather function.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "trireme/trace/region.hpp"

namespace trireme::trace {

// Collective in the caller's sense: every rank passes its text, rank 0 gets all in rank order, the
// others an empty vector.
using Gather = std::function<std::vector<std::string>(const std::string& mine)>;

// Totals of one place in the call tree of the main thread.
struct RegionTotal {
  std::string path;  // "iteration/train/optimizer"
  Category category = Category::work;
  int64_t calls = 0;
  double seconds = 0;
  double longest = 0;
  double wait = 0;  // of these seconds, in wait regions and at no work there
  int64_t bytes = 0;
  int64_t resident = 0;       // phases: as PhaseMemory
  int64_t peak = 0;           // phases: VmHWM at its last end
  int64_t device = 0;         // phases: as PhaseMemory
  double device_seconds = 0;  // phases: from where the device came to their begin to where it came
                              // to their end (device_clock.hpp)

  static constexpr auto fields =
      std::tuple{&RegionTotal::path,    &RegionTotal::category,      &RegionTotal::calls,
                 &RegionTotal::seconds, &RegionTotal::longest,       &RegionTotal::wait,
                 &RegionTotal::bytes,   &RegionTotal::resident,      &RegionTotal::peak,
                 &RegionTotal::device,  &RegionTotal::device_seconds};
  bool operator==(const RegionTotal&) const = default;
};

// One rank's totals since start.
struct Summary {
  int rank = 0;
  std::string
      role;  // "trainer", "generator, reward": ranks with the same text form one group of the table
  double seconds = 0;  // wall time since start
  double communication =
      0;  // exposed: on the main thread, outermost communication regions; and waits of a device
  double wait = 0;  // the same for wait regions, without the work that is done within them
  double io = 0;
  int64_t host_peak = 0;
  int64_t device_peak = 0;
  int64_t dropped = 0;               // events not in trace.json
  std::vector<RegionTotal> regions;  // depth first
  std::map<std::string, double> counter_max;

  std::string to_bytes() const;
  static Summary from_bytes(std::string_view bytes);  // UserError(bad_data) when malformed
  bool operator==(const Summary&) const = default;
};
Summary summarize(int rank, std::string role);

// Seconds that the main thread has spent in its outermost regions of this name, the open one
// included, and seconds of waiting in them, counted as in the table.
struct Waited {
  double seconds = 0;
  double wait = 0;
};
Waited waited_in(const std::string& name);

struct Spread {
  double min = 0, avg = 0, max = 0;
};
struct TableRow {
  std::string path;
  Category category = Category::work;
  int depth = 0;
  int64_t calls = 0;   // of the rank that has most
  Spread seconds;      // over the ranks of the role; a rank without the region counts as 0
  double wait = 0;     // of them, the average
  double percent = 0;  // of the role's average wall time
  double bytes = 0;    // average per rank
  int64_t resident = 0, peak = 0, device = 0;  // largest over ranks
  double device_seconds = 0;                   // average per rank
};
struct RoleTable {
  // Of a rank on average, in its outermost regions called "iteration": starting and ending a run
  // say nothing about its roles.
  struct Iterations {
    int64_t count = 0;
    double seconds = 0;
    double wait = 0;
    double busy() const { return seconds - wait; }
  };
  std::string role;
  int ranks = 0;
  Iterations iterations;
  Spread seconds, communication, wait, io;
  int64_t host_peak = 0, device_peak = 0, dropped = 0;
  std::vector<TableRow> rows;
};
using Table = std::vector<RoleTable>;  // in the order of the roles' lowest ranks

Table make_table(std::span<const Summary> summaries);

// Rows under this share of the wall time are folded into one "other" per parent.
struct TableStyle {
  double fold_below_percent = 0.5;
  int max_depth = 4;
};
std::string to_text(const Table& table, const TableStyle& style = {});

// Whether the roles work at the same time (train.async_depth > 0) or take turns.
enum class RolesRun { together, in_turns };
// NOTE lines: a role that waited more than `threshold` of its iterations for another, with the
// split to try by what each of them had to do; ranks of a role that differ by more than a quarter
// in one region; dropped events. Empty when there is nothing to say.
std::vector<std::string> notes(const Table& table, RolesRun run, double threshold = 0.08);

// Seconds of an iteration, the share of them that each role was idle, and, of roles that work at
// the same time, how long it would have taken in turns. Empty where there were no iterations or one
// group of ranks has all roles.
std::string overlap_text(const Table& table, RolesRun run);

// summarize + gather + make_table; an empty table on ranks other than 0. Collective over the ranks
// of `gather`.
Table gather_table(int rank, std::string role, const Gather& gather);

}  // namespace trireme::trace
