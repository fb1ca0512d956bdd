// Agreed stop: signals and touch-files set flags on some ranks; all ranks decide together, once per
// iteration.
#pragma once

#include <filesystem>

#include "trireme/comm/comm.hpp"
#include "trireme/job/signals.hpp"

namespace trireme::comm {

// Files by which somebody asks where no signal gets through. An empty path is no file.
struct RequestFiles {
  std::filesystem::path stop;  // save and stop
  std::filesystem::path save;  // save and go on
};

// Collective over `world`: the most urgent wish of any rank. `wish` is what this rank wants besides
// its signals (the walltime); rank 0 also looks for the files.
job::StopReason agree_to_stop(const CommView& world, const RequestFiles& files,
                              job::StopReason wish = job::StopReason::none);

}  // namespace trireme::comm
