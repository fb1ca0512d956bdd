#include "trireme/job/stop_file.hpp"

#include <chrono>
#include <system_error>
#include <utility>

#include "trireme/base/progress.hpp"

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
    if (std::filesystem::exists(file_, ignored)) seen_ = true;
    lock.lock();
  }
}

}  // namespace trireme::job
