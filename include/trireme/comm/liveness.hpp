// What ranks know of each other while a collective may hang, and who is to blame for it. Pure
// functions and plain values; watchdog.hpp moves them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trireme/base/progress.hpp"
#include "trireme/job/signals.hpp"

namespace trireme::comm {

// Deadlines in seconds; 0: never.
struct Deadlines {
  double usual = 300;
  double io = 1800;  // while files are read or written
};

// A rank as it describes itself, twice a second.
struct LifeSign {
  double silent =
      0;  // seconds without any progress of the process, pauses of the whole process not counted
  bool waiting = false;  // for other ranks
  bool io = false;       // inside reading or writing
  std::string host{};
  std::string where{};  // open regions, outermost first
  std::string call{};   // the collective it is in, with its number and bytes; empty: in none
  job::StopReason wish = job::StopReason::none;  // asked of this rank; the others hear of it
  base::Written written{};                       // by its generator
};

// The last life sign of a rank, and for how long there has been none, by the clock of the one who
// listens.
struct RankLife {
  LifeSign sign;
  double unheard = 0;
};

// The longest that a rank may be silent where it is; 0: for ever.
double deadline_of(const LifeSign& sign, const Deadlines& deadlines);

// The fault, in words that name the ranks which did not arrive, where they are, and who waits
// for them; nullopt: nothing yet. In this order: ranks that are not heard of any more (stopped,
// node or network gone), ranks that work without progress for longer than the deadline of what they
// do, all ranks waiting for each other for longer than the usual deadline. A rank that waits for
// others is never to blame alone.
std::optional<std::string> find_hang(std::span<const RankLife> ranks, const Deadlines& deadlines);

// "in iteration 3 > train > actor step, in all_reduce of 8 B on world, the 4711th"
std::string place_of(const LifeSign& sign);

}  // namespace trireme::comm
