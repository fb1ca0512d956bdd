// The pipelines: one function per subcommand. `cli` parses and calls; everything else is behind
// this header. Collective over world; the options are validated already.
#pragma once

#include "trireme/base/error.hpp"
#include "trireme/comm/session.hpp"
#include "trireme/config/options.hpp"

namespace trireme::driver {

// Before MPI is initialised: what libraries must not do when it ends.
void before_mpi();

// `trireme ppo DECK`, `sft`, `rm` and `dpo`.
ExitCode run_ppo(const config::Options& options, const comm::Session& session);
ExitCode run_sft(const config::Options& options, const comm::Session& session);
ExitCode run_rm(const config::Options& options, const comm::Session& session);
ExitCode run_dpo(const config::Options& options, const comm::Session& session);

}  // namespace trireme::driver
