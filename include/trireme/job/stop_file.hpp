// The file `stop` of the run folder, looked for by a thread of its own: a file system that does not
// answer holds nobody else up.
#pragma once

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <thread>

namespace trireme::job {

class StopFile {
 public:
  // Looks once a second.
  explicit StopFile(std::filesystem::path file);
  StopFile(const StopFile&) = delete;
  ~StopFile();

  // Whether it was there at the last look. Any thread.
  bool seen() const { return seen_; }

 private:
  void watch();

  std::filesystem::path file_;
  std::atomic<bool> seen_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
  bool done_ = false;
  std::thread thread_;
};

}  // namespace trireme::job
