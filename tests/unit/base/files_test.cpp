#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"

namespace trireme::base {
namespace {

class Files : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path folder_ = std::filesystem::temp_directory_path() / text("trireme-files-", getpid());
};

TEST_F(Files, AtomicWriteReplaces) {
  const auto path = folder_ / "a.txt";
  write_file_atomically(path, "one");
  write_file_atomically(path, "two");
  EXPECT_EQ(read_file(path), "two");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "a.txt.tmp"));
  const MappedFile map(path);
  EXPECT_EQ(map.bytes().size(), 3u);
}

TEST_F(Files, EachFailureHasItsCode) {
  const auto code_of = [](auto&& action) {
    try {
      action();
    } catch (const UserError& error) {
      return error.code();
    }
    return ExitCode::done;
  };
  EXPECT_EQ(code_of([&] { read_file(folder_ / "missing"); }), ExitCode::input_missing);
  EXPECT_EQ(code_of([&] { MappedFile map(folder_); }), ExitCode::bad_data);
  EXPECT_EQ(code_of([&] { throw_errno(ENOSPC, "write", "x"); }), ExitCode::io_error);
  EXPECT_EQ(code_of([&] { throw_errno(EACCES, "write", "x"); }), ExitCode::permission);
  write_file_atomically(folder_ / "short", "abc");
  std::byte buffer[8];
  const auto fd = open_read(folder_ / "short");
  EXPECT_EQ(code_of([&] { read_at(fd.get(), 0, buffer, "short"); }), ExitCode::bad_data);
}

}  // namespace
}  // namespace trireme::base
