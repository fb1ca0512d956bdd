// Files by owned descriptors, with the durability steps that a commit needs. Every error is a
// UserError that names the path and the reason: input_missing, permission, io_error.
#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "trireme/base/error.hpp"

namespace trireme::base {

// Owns a file descriptor; move-only. Opened close-on-exec.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor();
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

// A read-only memory map of a whole file; move-only. Throws input_missing when there is no such
// file.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile();
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }
  // Gives the pages of `part`, which is of bytes(), and of 64 KiB around it back to the page cache:
  // they count no longer as this process' memory, and come again when they are touched.
  void let_go(std::span<const std::byte> part) const;

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

FileDescriptor open_read(const std::filesystem::path& path);
std::string read_file(const std::filesystem::path& path, uint64_t limit = uint64_t{1} << 31);
// "" where it is missing or cannot be read. Also for files of /proc and /sys, which have no size to
// ask for.
std::string read_if_there(const std::filesystem::path& path);

// Reads or writes all bytes at `offset`; a short transfer is an error.
void read_at(int fd, uint64_t offset, std::span<std::byte> into, const std::filesystem::path& name);
void write_at(int fd, uint64_t offset, std::span<const std::byte> from,
              const std::filesystem::path& name);
void write_all(int fd, std::string_view text, const std::filesystem::path& name);

// Writes `<path>.tmp`, syncs it, renames it over `path` and syncs the folder: after a crash either
// the old or the new file.
void write_file_atomically(const std::filesystem::path& path, std::string_view content);
void sync_folder(const std::filesystem::path& path);

// Bytes that an unprivileged writer may still use on the file system of `path`.
uint64_t free_space(const std::filesystem::path& path);

// The exit-code error for errno value `error` on `what`, e.g. "cannot write /a/b (No space left on
// device): free some space".
[[noreturn]] void throw_errno(int error, std::string_view what, const std::filesystem::path& path);
// The exit code for an error that std::filesystem threw; nullopt: it is an error of another kind.
std::optional<ExitCode> file_error_code(const std::exception& error);

}  // namespace trireme::base
