#include "file_steps.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string>

#include "trireme/base/error.hpp"
#include "trireme/base/fault_point.hpp"
#include "trireme/base/progress.hpp"
#include "trireme/checkpoint/writer.hpp"

namespace trireme::checkpoint {

const std::vector<std::string>& crash_points() {
  static const std::vector<std::string> points = {
      "ckpt.begin",         "ckpt.preflight",        "ckpt.tmp_created",   "ckpt.laid_out",
      "ckpt.half_written",  "ckpt.written",          "ckpt.synced",        "ckpt.verified",
      "ckpt.index_written", "ckpt.manifest_written", "ckpt.tmp_synced",    "ckpt.voted",
      "ckpt.before_rename", "ckpt.after_rename",     "ckpt.parent_synced", "ckpt.latest_moved",
      "ckpt.pruned"};
  return points;
}

void make_folder(const std::filesystem::path& path) {
  const base::FileWork work{"making", path};
  base::fault_point("ckpt.mkdir", path);
  if (::mkdir(path.c_str(), 0777) != 0) base::throw_errno(errno, "create the folder", path);
}

base::FileDescriptor open_for_writing(const std::filesystem::path& path) {
  const base::FileWork work{"open", path};
  base::fault_point("ckpt.open", path);
  base::FileDescriptor fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd.valid()) base::throw_errno(errno, "open for writing", path);
  return fd;
}

base::FileDescriptor create_file(const std::filesystem::path& path) {
  const base::FileWork work{"open", path};
  base::fault_point("ckpt.open", path);
  base::FileDescriptor fd(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (!fd.valid()) base::throw_errno(errno, "create", path);
  return fd;
}

void write_at(int fd, uint64_t offset, std::span<const std::byte> from,
              const std::filesystem::path& path) {
  base::fault_point("ckpt.write", path);
  base::write_at(fd, offset, from, path);
}

void sync_descriptor(int fd, const std::filesystem::path& path) {
  const base::FileWork work{"sync", path};
  base::fault_point("ckpt.fsync", path);
  if (::fsync(fd) != 0) base::throw_errno(errno, "sync", path);
}

void close_file(base::FileDescriptor fd, const std::filesystem::path& path) {
  const base::FileWork work{"close", path};
  base::fault_point("ckpt.close", path);
  if (::close(fd.release()) != 0) base::throw_errno(errno, "close", path);
}

void rename_path(const std::filesystem::path& from, const std::filesystem::path& to) {
  const base::FileWork work{"rename", to};
  base::fault_point("ckpt.rename", to);
  if (::rename(from.c_str(), to.c_str()) != 0) base::throw_errno(errno, "rename to", to);
}

void exchange_paths(const std::filesystem::path& from, const std::filesystem::path& to) {
  const base::FileWork work{"rename", to};
  base::fault_point("ckpt.rename", to);
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) return;
  if (errno != EINVAL && errno != ENOSYS && errno != ENOTSUP)
    base::throw_errno(errno, "exchange with", to);
  exchange_by_renames(from, to);
}

void exchange_by_renames(const std::filesystem::path& from, const std::filesystem::path& to) {
  const std::filesystem::path aside = from.string() + ".old";
  if (::rename(to.c_str(), aside.c_str()) != 0) base::throw_errno(errno, "move aside", to);
  base::fault_point("ckpt.moved_aside");
  if (::rename(from.c_str(), to.c_str()) != 0) {
    const int error = errno;
    ::rename(aside.c_str(), to.c_str());
    base::throw_errno(error, "rename to", to);
  }
  base::fault_point("ckpt.moved_in");
  if (::rename(aside.c_str(), from.c_str()) != 0) base::throw_errno(errno, "rename to", from);
}

void reserve(int fd, int64_t bytes, const std::filesystem::path& path) {
  const base::FileWork work{"reservation", path};
  if (bytes <= 0 || ::fallocate(fd, 0, 0, bytes) == 0) return;
  if (errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL) return;
  base::throw_errno(
      errno, base::text("reserve ", base::human_bytes(static_cast<double>(bytes)), " for"), path);
}

}  // namespace trireme::checkpoint
