#include "trireme/base/files.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "trireme/base/progress.hpp"

namespace trireme::base {

void throw_errno(int error, std::string_view what, const std::filesystem::path& path) {
  ExitCode code = ExitCode::io_error;
  std::string advice = "check the file system";
  switch (error) {
    case ENOENT:
      code = ExitCode::input_missing;
      advice = "check the path";
      break;
    case EACCES:
    case EPERM:
    case EROFS:
      code = ExitCode::permission;
      advice = "check the owner and the mode";
      break;
    case ENOSPC: advice = "free some space or choose another run.dir"; break;
    case EDQUOT: advice = "the quota is used up: free some space or choose another run.dir"; break;
    case EFBIG: advice = "raise the file-size limit (ulimit -f)"; break;
    default: break;
  }
  throw UserError(
      code, text("cannot ", what, " ", path.string(), " (", std::strerror(error), "): ", advice));
}

std::optional<ExitCode> file_error_code(const std::exception& error) {
  const auto* file = dynamic_cast<const std::filesystem::filesystem_error*>(&error);
  if (file == nullptr) return std::nullopt;
  return file->code() == std::errc::permission_denied ? ExitCode::permission : ExitCode::io_error;
}

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) ::close(fd_);
}

std::string read_if_there(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  return text.str();
}

FileDescriptor open_read(const std::filesystem::path& path) {
  const FileWork work{"open", path};
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw_errno(errno, "open", path);
  return FileDescriptor(fd);
}

namespace {

uint64_t regular_size(int fd, const std::filesystem::path& path) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) throw_errno(errno, "inspect", path);
  VALIDATE(S_ISREG(info.st_mode), ExitCode::bad_data, path.string(),
           " is not a regular file: give the path of a file");
  return static_cast<uint64_t>(info.st_size);
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  const FileWork work{"open", path};
  const FileDescriptor fd = open_read(path);
  size_ = regular_size(fd.get(), path);
  if (size_ == 0) return;
  void* map = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (map == MAP_FAILED) throw_errno(errno, "map", path);
  data_ = static_cast<const std::byte*>(map);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
}

// A page that is read brings those around it, which the parts before and behind gave back already.
void MappedFile::let_go(std::span<const std::byte> part) const {
  constexpr uintptr_t around = 64 << 10;  // Linux' fault-around
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE)),
             file = reinterpret_cast<uintptr_t>(data_),
             begin = reinterpret_cast<uintptr_t>(part.data()),
             first = std::max(begin / page * page, file + around) - around,
             last = std::min(begin + part.size() + around, file + size_);
  if (first < last) ::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

std::string read_file(const std::filesystem::path& path, uint64_t limit) {
  const FileWork work{"read", path};
  const FileDescriptor fd = open_read(path);
  const uint64_t size = regular_size(fd.get(), path);
  VALIDATE(size <= limit, ExitCode::bad_data, path.string(), " has ", size, " bytes (the limit is ",
           limit, ")");
  std::string out(size, '\0');
  read_at(fd.get(), 0, std::as_writable_bytes(std::span(out)), path);
  return out;
}

void read_at(int fd, uint64_t offset, std::span<std::byte> into,
             const std::filesystem::path& name) {
  const FileWork work{"read", name};
  while (!into.empty()) {
    const ssize_t n = ::pread(fd, into.data(), into.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw_errno(errno, "read", name);
    VALIDATE(n > 0, ExitCode::bad_data, name.string(), " ends ", into.size(),
             " bytes early: the file is truncated");
    offset += static_cast<uint64_t>(n);
    into = into.subspan(static_cast<size_t>(n));
  }
}

void write_at(int fd, uint64_t offset, std::span<const std::byte> from,
              const std::filesystem::path& name) {
  const FileWork work{"write", name};
  while (!from.empty()) {
    const ssize_t n = ::pwrite(fd, from.data(), from.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw_errno(errno, "write", name);
    offset += static_cast<uint64_t>(n);
    from = from.subspan(static_cast<size_t>(n));
  }
}

void write_all(int fd, std::string_view content, const std::filesystem::path& name) {
  const FileWork work{"write", name};
  while (!content.empty()) {
    const ssize_t n = ::write(fd, content.data(), content.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw_errno(errno, "write", name);
    content.remove_prefix(static_cast<size_t>(n));
  }
}

void sync_folder(const std::filesystem::path& path) {
  const FileWork work{"sync", path};
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) throw_errno(errno, "open", path);
  const FileDescriptor owner(fd);
  if (::fsync(fd) != 0) throw_errno(errno, "sync", path);
}

void write_file_atomically(const std::filesystem::path& path, std::string_view content) {
  const FileWork work{"write", path};
  std::filesystem::path temporary = path;
  temporary += ".tmp";
  FileDescriptor file(
      ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (!file.valid()) throw_errno(errno, "create", temporary);
  try {
    write_all(file.get(), content, temporary);
    if (::fsync(file.get()) != 0) throw_errno(errno, "sync", temporary);
    file = FileDescriptor();
    if (::rename(temporary.c_str(), path.c_str()) != 0) throw_errno(errno, "replace", path);
  } catch (const UserError&) {
    ::unlink(temporary.c_str());  // half a file would keep the space that may be what is missing
    throw;
  }
  sync_folder(path.has_parent_path() ? path.parent_path() : std::filesystem::path("."));
}

uint64_t free_space(const std::filesystem::path& path) {
  const FileWork work{"look at the space", path};
  struct statvfs info {};
  if (::statvfs(path.c_str(), &info) != 0) throw_errno(errno, "inspect", path);
  return static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
}

}  // namespace trireme::base
