// What signals ask of this process. Ranks decide together what follows from them (comm/stop.hpp).
//
//   SIGUSR1            save at the end of the iteration and stop
//   SIGUSR2            save at the end of the iteration and go on
//   SIGTERM, SIGINT    stop; a TermWatch (term_watch.hpp) leaves sooner when the grace is too short
//   for that. A second SIGINT within
//                      5 s ends the process at once
//                      a third SIGTERM or SIGINT while the last checkpoint is written, each at
//                      least 2 s after the one before, ends the process at once: launchers deliver
//                      one signal several times in a burst, a person does not. SIGUSR1 never
//                      counts: a script may repeat it for as long as the save takes
//   SIGPIPE, SIGXFSZ   ignored, so that calls return EPIPE and EFBIG
//   SIGCONT            sent by launchers before SIGTERM: means nothing
// Handlers only set flags.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace trireme::job {

enum class StopReason : uint8_t {
  none,
  save_and_go_on,
  warning_signal,
  terminate_signal,
  interrupt,
  stop_file,
  walltime
};
std::string to_string(StopReason reason);

// Installs the handlers of this process; idempotent.
void install_signal_handlers();

// From now on the first signal that asks for a stop is answered on stderr at once, with `stop_file`
// as the other way to ask. On the rank that talks.
void say_at_stop(const std::filesystem::path& stop_file);

// The request of this process's signals so far, without asking others; `clear_save` forgets a
// served SIGUSR2.
StopReason pending_signal();
void clear_save_request();
// Seconds since the first SIGTERM or SIGINT of this process; nullopt: none came. Any thread.
std::optional<double> seconds_since_terminate();
// From now on this process writes its last checkpoint: a third SIGTERM or SIGINT ends it at once.
void leaving_with_checkpoint();

}  // namespace trireme::job
