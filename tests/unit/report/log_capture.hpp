#pragma once

#include <unistd.h>

#include <filesystem>
#include <string>

#include "trireme/base/files.hpp"
#include "trireme/base/log.hpp"
#include "trireme/base/text.hpp"

namespace trireme::report {

// The log of this process goes to a file while it lives, and nowhere else.
class LogCapture {
 public:
  LogCapture()
      : path_(std::filesystem::temp_directory_path() /
              base::text("trireme-report-log-", getpid())) {
    std::filesystem::remove(path_);
    log::open({.console = false, .main_file = path_, .rank_file = {}});
  }
  ~LogCapture() {
    log::close();
    std::filesystem::remove(path_);
  }
  LogCapture(const LogCapture&) = delete;
  LogCapture& operator=(const LogCapture&) = delete;
  std::string text() const {
    return base::read_file(path_);
  }  // warnings and info are flushed as they come

 private:
  std::filesystem::path path_;
};

}  // namespace trireme::report
