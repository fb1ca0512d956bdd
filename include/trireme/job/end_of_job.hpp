// When the job that this process is part of ends, as the deck and the batch system say.
#pragma once

#include <string>

#include "trireme/job/walltime.hpp"

namespace trireme::job {

// "23:55:10" or "Sun 00:10": when the clock on the wall shows now + seconds.
std::string clock_time(double seconds_from_now);

// `deck_seconds` (run.walltime; 0: not given), or what the batch system says, which is asked;
// whichever is earlier. Says in the log what it found, and warns when the job has more nodes than
// the `nodes_used` of its ranks. For one rank of a job: the others have no limit.
Walltime walltime_of_job(double deck_seconds, int nodes_used);

}  // namespace trireme::job
