#include "report/grown_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "trireme/base/log.hpp"
#include "trireme/base/progress.hpp"

namespace trireme::report {

GrownFile::GrownFile(std::filesystem::path path) : path_(std::move(path)) {
  const base::FileWork work{"open", path_};
  std::filesystem::create_directories(path_.parent_path());
  file_ =
      base::FileDescriptor(::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!file_.valid()) base::throw_errno(errno, "open", path_);
}

void GrownFile::append(std::string_view bytes) {
  const base::FileWork work{"write", path_};
  try {
    base::write_all(file_.get(), bytes, path_);
  } catch (const UserError&) {
    if (::ftruncate(file_.get(), static_cast<off_t>(size_)) == 0)
      ::lseek(file_.get(), static_cast<off_t>(size_), SEEK_SET);
    throw;
  }
  size_ += bytes.size();
}

void append_to(const std::filesystem::path& path, std::string_view bytes) {
  const base::FileWork work{"write", path};
  const base::FileDescriptor file(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (!file.valid()) base::throw_errno(errno, "open", path);
  const off_t size = ::lseek(file.get(), 0, SEEK_END);
  try {
    base::write_all(file.get(), bytes, path);
  } catch (const UserError&) {
    if (::ftruncate(file.get(), size) != 0)
      log::warning(base::text(path.string(), " may end in half a line"));
    throw;
  }
}

}  // namespace trireme::report
