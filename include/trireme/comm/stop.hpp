// Agreed stop: signals and a touch-file set flags on some ranks; all ranks decide together, once per iteration.
// Signal policy: SIGUSR1 save and stop; SIGUSR2 save and go on; SIGTERM and SIGINT stop (a second SIGINT within 5 s exits
// at once); SIGCONT, SIGPIPE and SIGXFSZ are ignored. Handlers only set a flag.
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

// The walltime rule: stop when what remains is less than 1.3 x the longest phase + 1.5 x the last save + a margin.
class Walltime {
 public:
  // `limit_seconds` from the process's start; nullopt: no limit known.
  explicit Walltime(std::optional<double> limit_seconds, double margin_seconds = 10);
  void phase_took(double seconds);
  void save_took(double seconds);
  bool must_stop() const;
  std::optional<double> remaining() const;
  // Seconds that the next phase and a save are reckoned to need.
  double needed() const;

 private:
  std::optional<double> deadline_;
  double margin_;
  double longest_phase_ = 0;
  double last_save_ = 0;
};

// Collective over `world`: the most urgent wish of any rank (rank 0 also looks for `stop_file` and the walltime).
StopReason agree_to_stop(const CommView& world, const std::filesystem::path& stop_file, const Walltime& walltime);

}  // namespace trireme::comm
