// Ends a job in which ranks wait for ever, and says who did not arrive. MPI alone spins for ever
// beside a dead or stopped rank.
//
// Each rank's watchdog thread looks twice a second (WatchdogOptions::look_every) where its process
// is and whether it makes progress, and tells rank 0 by a small message on a communicator of its
// own, which rank 0 answers. Rank 0 judges (liveness.hpp); the others judge rank 0, when it no
// longer answers. Whoever finds a hang tells all: every rank writes first words to stderr and what
// it was doing to <run>/hang/rank-NNNNN.json, then the job ends with exit code 70. None of that
// waits for a file system, a log or MPI: each has a thread of its own, and 2 seconds. Time in which
// the process itself stood still (SIGSTOP, a suspended job) is nobody's silence. Where MPI gives
// less than MPI_THREAD_MULTIPLE there are no messages: a rank then judges itself alone and cannot
// name another.
//
// What NCCL finds wrong by itself (a dead link, a peer that is gone) ends the job in the same way,
// within a second.
//
// The same messages carry what a rank was asked for by a signal or a file, so that others can leave
// work that lasts before they meet it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>

#include "trireme/comm/comm.hpp"
#include "trireme/comm/liveness.hpp"

namespace trireme::comm {

struct WatchdogOptions {
  Deadlines deadlines;
  std::filesystem::path report_folder;  // made when there is something to report
  bool thread_multiple = false;
  double look_every = 0.5;  // seconds between two looks
  // Where this rank is (without silent), and a count that changes with every progress. Called from
  // the watchdog's thread; must not wait for the main thread.
  std::function<LifeSign()> look;
  std::function<uint64_t()> activity;
};

class Watchdog {
 public:
  // Collective over `world`, which is duplicated. From then on communicators between GPUs must be
  // made within the usual deadline.
  Watchdog(const CommView& world, WatchdogOptions options);
  Watchdog(const Watchdog&) = delete;
  // Collective, unless an exception is on its way: then this rank leaves alone, and what messages
  // still need stays allocated.
  ~Watchdog();

  // The most urgent wish of any rank, about a second after its look() said so; this rank's own
  // where there are no messages. Any thread.
  job::StopReason heard_wish() const;
  // On rank 0: the output of all generators, as of the last life signs. On other ranks, and where
  // there are no messages: that of this rank's generator. Any thread.
  base::Written heard_written() const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme::comm
