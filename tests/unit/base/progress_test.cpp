#include "trireme/base/progress.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <string>
#include <thread>

#include "trireme/base/files.hpp"

namespace trireme::base {
namespace {

TEST(FileWork, TellsTheOutermostOfAThread) {
  EXPECT_EQ(file_work_of(gettid()), "");
  {
    const FileWork outer{"commit", "/run/hf"};
    const FileWork inner{"write", "/run/hf/config.json"};
    EXPECT_EQ(file_work_of(gettid()), "commit of /run/hf");
    std::thread([caller = gettid()] {
      EXPECT_EQ(file_work_of(gettid()), "");
      const FileWork mine{"read", "/data"};
      EXPECT_EQ(file_work_of(gettid()), "read of /data");
      EXPECT_EQ(file_work_of(caller), "commit of /run/hf");
    }).join();
  }
  EXPECT_EQ(file_work_of(gettid()), "");
}

TEST(FileWork, AFileThatNeverAnswersIsNamed) {
  const auto pipe =
      std::filesystem::temp_directory_path() / ("trireme-pipe-" + std::to_string(getpid()));
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  std::atomic<int> reader{0};
  std::thread stuck([&] {
    reader = gettid();
    open_read(pipe);  // waits for a writer
  });
  while (file_work_of(reader).empty()) std::this_thread::yield();
  EXPECT_EQ(file_work_of(reader), "open of " + pipe.string());
  const FileDescriptor writer(::open(pipe.c_str(), O_WRONLY | O_CLOEXEC));
  stuck.join();
  EXPECT_EQ(file_work_of(reader), "");
  std::filesystem::remove(pipe);
}

}  // namespace
}  // namespace trireme::base
