// Agreed stop: signals and a touch-file set flags on some ranks; all ranks decide together, once per iteration.
//
//   SIGUSR1            save at the end of the iteration and stop
//   SIGUSR2            save at the end of the iteration and go on
//   SIGTERM, SIGINT    stop; a TermWatch (term_watch.hpp) leaves sooner when the grace is too short for that. A second SIGINT within
//                      5 s ends the process at once
//                      a third SIGTERM or SIGINT while the last checkpoint is written, each at least 2 s after the one before, ends the
//                      process at once: launchers deliver one signal several times in a burst, a person does not. SIGUSR1 never
//                      counts: a script may repeat it for as long as the save takes
//   files stop, save   as SIGTERM without a deadline, as SIGUSR2
//   SIGPIPE, SIGXFSZ   ignored, so that calls return EPIPE and EFBIG
//   SIGCONT            sent by launchers before SIGTERM: means nothing
// Handlers only set flags.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "trireme/comm/comm.hpp"

namespace trireme::comm {

enum class StopReason : uint8_t { none, save_and_go_on, warning_signal, terminate_signal, interrupt, stop_file, walltime };
std::string to_string(StopReason reason);

// Installs the handlers of this process; idempotent.
void install_signal_handlers();

// What the signals of this process ask for so far, without asking others; `clear_save` forgets a served SIGUSR2.
StopReason pending_signal();
void clear_save_request();
// Seconds since the first SIGTERM or SIGINT of this process; nullopt: none came. Any thread.
std::optional<double> seconds_since_terminate();
// From now on this process writes its last checkpoint: a third SIGTERM or SIGINT ends it at once.
void leaving_with_checkpoint();

// Files by which somebody asks where no signal gets through. An empty path is no file.
struct RequestFiles {
  std::filesystem::path stop;  // save and stop
  std::filesystem::path save;  // save and go on
};

// Collective over `world`: the most urgent wish of any rank. `wish` is what this rank wants besides its signals (the walltime); rank 0
// also looks for the files.
StopReason agree_to_stop(const CommView& world, const RequestFiles& files, StopReason wish = StopReason::none);

}  // namespace trireme::comm
