// The watchdog of a run: deadlines of the deck, where the main thread is, and what this rank is
// asked for.
#pragma once

#include <filesystem>
#include <functional>
#include <mutex>
#include <string>

#include "trireme/comm/roles.hpp"
#include "trireme/comm/watchdog.hpp"
#include "trireme/config/options.hpp"
#include "trireme/job/signals.hpp"

namespace trireme::comm {

class RunWatch {
 public:
  // Collective over world. From here on a rank that hangs is named.
  RunWatch(const config::Options& options, const Roles& roles, bool thread_multiple);

  // Who tells what this rank is asked for while an iteration is at work; called from another
  // thread. nullptr: nobody any more.
  void ask(std::function<job::StopReason()> wish);
  // As Watchdog.
  job::StopReason heard_wish() const { return dog_.heard_wish(); }
  base::Written heard_written() const { return dog_.heard_written(); }

  static std::filesystem::path report_folder(const config::Options& options) {
    return std::filesystem::path(options.run.dir) / "hang";
  }

 private:
  LifeSign life_sign(const std::string& host);

  std::mutex mutex_;
  std::function<job::StopReason()> wish_;
  Watchdog dog_;  // last: it calls the others
};

}  // namespace trireme::comm
