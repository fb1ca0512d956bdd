// The program is linked twice. `trireme` is for CPUs; `trireme-gpu` beside it also loads LibTorch's
// CUDA libraries, which cost 0.3 s and 350 MiB a process
// (docs/design/0009-two-programs-one-name.md). Users call `trireme`: a run that may use a GPU goes
// over to `trireme-gpu` by itself.
#pragma once

#include "trireme/config/choices.hpp"

namespace trireme::cli {

// Before MPI starts. `wanted` is run.device. In the CPU variant: replaces the process by
// trireme-gpu, with the same arguments, when the deck says cuda, or auto where the machine has a
// GPU driver; returns when there is nothing to go over to. In the GPU variant: lets runs use GPUs.
// Throws UserError(unfit_environment) when trireme-gpu cannot be started.
void enter_variant(config::Device wanted, char** argv);

}  // namespace trireme::cli
