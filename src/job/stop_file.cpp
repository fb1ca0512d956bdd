#include "trireme/job/stop_file.hpp"

#include <chrono>
#include <system_error>
#include <utility>

#include "trireme/base/log.hpp"
#include "trireme/base/progress.hpp"
#include "trireme/base/text.hpp"

namespace trireme::job {

StopFile::StopFile(std::filesystem::path file)
    : file_(std::move(file)), thread_([this] { watch(); }) {}

StopFile::~StopFile() {
  const base::FileWork work{"look", file_};  // of the thread that is waited for
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void StopFile::watch() {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, std::chrono::seconds(1), [this] { return done_; })) {
    lock.unlock();
    std::error_code ignored;
    if (!seen_ && std::filesystem::exists(file_, ignored)) {
      seen_ = true;
      log::info(base::text("the file ", file_.string(),
                           " is there: the run saves and ends at the next place where it can be "
                           "left (run.stop_within)"));
    }
    lock.lock();
  }
}

}  // namespace trireme::job
