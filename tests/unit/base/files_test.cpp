#include "trireme/base/files.hpp"

#include "support/file_size_limit.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <string>
#include <utility>

#include "trireme/base/error.hpp"
#include "trireme/base/program.hpp"

namespace trireme::base {
namespace {

using testing::HasSubstr;

class Files : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / text("trireme-files-", getpid());
};

struct Failure {
  ExitCode code = ExitCode::done;
  std::string message;
};
template <class Action>
Failure failure_of(const Action& action) {
  try {
    action();
  } catch (const UserError& error) { return {error.code(), error.what()}; }
  return {};
}

std::string all_bytes(size_t count) {
  std::string out;
  for (size_t i = 0; i < count; ++i) out += static_cast<char>(i * 31 % 256);
  return out;
}

bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

TEST_F(Files, OneThatMayBeMissingHasAText) {
  EXPECT_EQ(read_if_there(folder_ / "none"), "");
  EXPECT_EQ(read_if_there(folder_), "") << "a folder";
  write_file_atomically(folder_ / "some", all_bytes(70001));
  EXPECT_EQ(read_if_there(folder_ / "some"), all_bytes(70001));
  EXPECT_NE(read_if_there("/proc/self/stat"), "") << "its size is 0 for whoever asks";
}

TEST_F(Files, AtomicWriteReplaces) {
  const auto path = folder_ / "a.txt";
  for (const std::string& content :
       {std::string("one"), std::string(), all_bytes(300001), std::string("two")}) {
    write_file_atomically(path, content);
    EXPECT_EQ(read_file(path), content);
    EXPECT_FALSE(std::filesystem::exists(folder_ / "a.txt.tmp"));
  }
  const MappedFile map(path);
  EXPECT_EQ(map.bytes().size(), 3u);
}

TEST_F(Files, AnAtomicWriteThatFailsLeavesTheOldFileAndNoOther) {
  const auto path = folder_ / "kept";
  write_file_atomically(path, "old");
  const Failure failure = [&] {
    const test::FileSizeLimit limit(1000);
    return failure_of([&] { write_file_atomically(path, std::string(5000, 'n')); });
  }();
  EXPECT_EQ(failure.code, ExitCode::io_error);
  EXPECT_THAT(failure.message, HasSubstr((folder_ / "kept.tmp").string()));
  EXPECT_THAT(failure.message, HasSubstr("ulimit -f"));
  EXPECT_EQ(read_file(path), "old");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "kept.tmp"));

  std::filesystem::create_directory(folder_ / "folder");
  const Failure onto_folder = failure_of([&] { write_file_atomically(folder_ / "folder", "x"); });
  EXPECT_EQ(onto_folder.code, ExitCode::io_error);
  EXPECT_THAT(onto_folder.message,
              HasSubstr("cannot replace " + (folder_ / "folder").string() + " ("));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "folder.tmp"));
  EXPECT_EQ(failure_of([&] { write_file_atomically(folder_ / "missing" / "x", "x"); }).code,
            ExitCode::input_missing);
}

TEST_F(Files, AnAtomicWriteDoesNotFollowALinkInItsWay) {
  write_file_atomically(folder_ / "precious", "precious");
  std::filesystem::create_symlink(folder_ / "precious", folder_ / "a.tmp");
  EXPECT_EQ(failure_of([&] { write_file_atomically(folder_ / "a", "x"); }).code,
            ExitCode::io_error);
  EXPECT_EQ(read_file(folder_ / "precious"), "precious");
}

TEST_F(Files, EachErrorNumberHasItsCodeAndAdvice) {
  struct Row {
    int error;
    ExitCode code;
    const char* reason;
    const char* advice;
  };
  for (const Row& row : std::initializer_list<Row>{
           {ENOENT, ExitCode::input_missing, "No such file or directory", "check the path"},
           {EACCES, ExitCode::permission, "Permission denied", "owner and the mode"},
           {EROFS, ExitCode::permission, "Read-only file system", "owner and the mode"},
           {ENOSPC, ExitCode::io_error, "No space left on device", "free some space"},
           {EDQUOT, ExitCode::io_error, "quota exceeded", "the quota is used up"},
           {EFBIG, ExitCode::io_error, "File too large", "ulimit -f"},
           {EIO, ExitCode::io_error, "Input/output error", "check the file system"}}) {
    const Failure failure = failure_of([&] { throw_errno(row.error, "write", "/a/b"); });
    EXPECT_EQ(failure.code, row.code) << row.reason;
    EXPECT_THAT(failure.message, testing::StartsWith("cannot write /a/b ("));
    EXPECT_THAT(failure.message, HasSubstr(row.reason));
    EXPECT_THAT(failure.message, HasSubstr(row.advice));
  }
}

TEST_F(Files, WhatCannotBeReadIsNamed) {
  const std::string missing = (folder_ / "missing").string();
  for (const Failure& failure :
       {failure_of([&] { read_file(missing); }), failure_of([&] { MappedFile map(missing); }),
        failure_of([&] { sync_folder(missing); }), failure_of([&] { free_space(missing); })}) {
    EXPECT_EQ(failure.code, ExitCode::input_missing);
    EXPECT_THAT(failure.message, HasSubstr(missing + " (No such file"));
  }
  for (const Failure& failure :
       {failure_of([&] { read_file(folder_); }), failure_of([&] { MappedFile map(folder_); })}) {
    EXPECT_EQ(failure.code, ExitCode::bad_data);
    EXPECT_THAT(failure.message, HasSubstr(folder_.string() + " is not a regular file"));
  }
}

TEST_F(Files, ReadsAtMostTheLimit) {
  const auto path = folder_ / "ten";
  write_file_atomically(path, "0123456789");
  EXPECT_EQ(read_file(path, 10), "0123456789");
  const Failure failure = failure_of([&] { read_file(path, 9); });
  EXPECT_EQ(failure.code, ExitCode::bad_data);
  EXPECT_THAT(failure.message, HasSubstr("has 10 bytes (the limit is 9)"));
}

TEST_F(Files, ReadsAndWritesAtOffsets) {
  const auto path = folder_ / "sparse";
  const FileDescriptor fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  const std::string word = "word";
  write_at(fd.get(), 5, std::as_bytes(std::span(word)), path);
  EXPECT_EQ(read_file(path), std::string(5, '\0') + "word");
  std::string got(3, '?');
  read_at(fd.get(), 6, std::as_writable_bytes(std::span(got)), path);
  EXPECT_EQ(got, "ord");
  read_at(fd.get(), 1000, {}, path);  // nothing asked for, nothing missing
  std::string beyond(8, '?');
  const Failure failure =
      failure_of([&] { read_at(fd.get(), 6, std::as_writable_bytes(std::span(beyond)), path); });
  EXPECT_EQ(failure.code, ExitCode::bad_data);
  EXPECT_THAT(failure.message, HasSubstr("sparse ends 5 bytes early"));
}

TEST_F(Files, AFullDeviceIsSaid) {
  const FileDescriptor full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  if (!full.valid()) GTEST_SKIP() << "this system has no /dev/full";
  const std::string word = "word";
  for (const Failure& failure :
       {failure_of([&] { write_all(full.get(), word, "/dev/full"); }), failure_of([&] {
          write_at(full.get(), 0, std::as_bytes(std::span(word)), "/dev/full");
        })}) {
    EXPECT_EQ(failure.code, ExitCode::io_error);
    EXPECT_THAT(failure.message,
                HasSubstr("cannot write /dev/full (No space left on device): free some space"));
  }
}

TEST_F(Files, MapsOutliveTheirNameAndMove) {
  const auto path = folder_ / "mapped";
  const std::string content = all_bytes(10000);
  write_file_atomically(path, content);
  MappedFile first(path);
  MappedFile map(std::move(first));
  std::filesystem::remove(path);
  EXPECT_TRUE(std::ranges::equal(map.bytes(), std::as_bytes(std::span(content))));
  EXPECT_EQ(map.path(), path);
  EXPECT_EQ(first.bytes().data(), nullptr) << "one owner unmaps";
  write_file_atomically(path, "");
  EXPECT_TRUE(MappedFile(path).bytes().empty());
}

TEST_F(Files, DescriptorsAreClosedOnceByTheirOwner) {
  FileDescriptor a = open_read("/dev/null"), b = open_read("/dev/null");
  const int first = a.get(), second = b.get();
  EXPECT_NE(::fcntl(first, F_GETFD) & FD_CLOEXEC, 0);
  a = std::move(b);
  EXPECT_FALSE(is_open(first));
  EXPECT_TRUE(is_open(second));
  EXPECT_FALSE(b.valid());
  FileDescriptor& same = a;
  a = std::move(same);
  EXPECT_TRUE(is_open(second));
  const int released = a.release();
  a = FileDescriptor();
  EXPECT_TRUE(is_open(released));
  { const FileDescriptor owner(released); }
  EXPECT_FALSE(is_open(released));
}

TEST(Program, ItsBuildIdStandsInItsFile) {
  const std::string id = build_id();
  ASSERT_EQ(id.size(), 40u) << id;
  std::string bytes;
  for (size_t i = 0; i < id.size(); i += 2)
    bytes += static_cast<char>(std::stoi(id.substr(i, 2), nullptr, 16));
  EXPECT_NE(read_file("/proc/self/exe").find(bytes), std::string::npos);
}

TEST_F(Files, FreeSpaceIsNoMoreThanTheFileSystemHas) {
  const auto space = std::filesystem::space(folder_);
  EXPECT_GT(free_space(folder_), 0u);
  EXPECT_LE(free_space(folder_), space.capacity);
}

}  // namespace
}  // namespace trireme::base
