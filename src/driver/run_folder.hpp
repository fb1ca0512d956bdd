// The folder of a run: lock, logs, the complete deck, metrics. Collective construction; rank 0
// writes.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "trireme/checkpoint/run_lock.hpp"
#include "trireme/comm/comm.hpp"
#include "trireme/config/options.hpp"

namespace trireme::driver {

class RunFolder {
 public:
  // Collective. Creates <run.dir> with logs/, takes the run lock and that of the folder of
  // checkpoints (exit code 73 when another job has one), opens log.txt and logs/rank-NNNNN.log,
  // puts names of checkpoints right that an end left wrong, and writes a first deck.toml. Exit code
  // 75 when somebody asked for a stop while nobody ran.
  RunFolder(const config::Options& options, const comm::CommView& world);
  ~RunFolder();

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path checkpoints() const { return checkpoints_; }
  std::filesystem::path stop_file() const { return path_ / "stop"; }
  // The name of the stop file from when a run has ended, until the next start: scripts look for it.
  std::filesystem::path obeyed_stop_file() const { return path_ / "stopped"; }
  bool obey_stop_file() const;  // whether there was one
  // Once nothing refuses it: scripts find checkpoints by it. A user's stays as deck.given.toml.
  void keep_deck() const;
  // Its existence asks for a checkpoint at the end of the iteration; the run removes it.
  std::filesystem::path save_file() const { return path_ / "save"; }
  const checkpoint::RunLock& lock() const { return *lock_; }
  const checkpoint::RunLock& checkpoint_lock() const {
    return checkpoint_lock_ ? *checkpoint_lock_ : *lock_;
  }
  const std::string& deck() const { return deck_; }  // complete TOML

 private:
  std::filesystem::path path_;
  std::filesystem::path checkpoints_;
  std::string deck_;
  std::unique_ptr<checkpoint::RunLock> lock_;
  // Another run folder may name the same ckpt.path. Null where that is the run folder itself.
  std::unique_ptr<checkpoint::RunLock> checkpoint_lock_;
};

}  // namespace trireme::driver
