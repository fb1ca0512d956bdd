// A thread that ends the job when the main thread makes no progress: MPI alone spins for ever beside a dead or stopped
// rank. Before it aborts with exit code 70 it writes what this rank was doing to <run>/hang/rank-NNNNN.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

namespace trireme::comm {

class Watchdog {
 public:
  // `describe` and `activity` are called from the watchdog's thread and must not take locks that the main thread may hold.
  // A change of activity() is progress, like a beat.
  Watchdog(int rank, double deadline_seconds, std::filesystem::path report_folder, std::function<std::string()> describe,
           std::function<uint64_t()> activity = {});
  Watchdog(const Watchdog&) = delete;
  ~Watchdog();

  // The main thread is alive; cheap (one atomic store).
  void beat(const char* where);
  // Inside a phase with its own deadline (I/O, reward plugins); 0 restores the usual one.
  void set_deadline(double seconds);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme::comm
