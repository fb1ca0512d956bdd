// Agreed stop: signals and a touch-file set flags on some ranks; all ranks decide together, once per iteration.
#pragma once

#include <filesystem>

#include "trireme/comm/comm.hpp"
#include "trireme/job/signals.hpp"

namespace trireme::comm {

// Collective over `world`: the most urgent wish of any rank. `wish` is what this rank wants besides its signals (the walltime); rank 0
// also looks for `stop_file`.
job::StopReason agree_to_stop(const CommView& world, const std::filesystem::path& stop_file,
                              job::StopReason wish = job::StopReason::none);

}  // namespace trireme::comm
