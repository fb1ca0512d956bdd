#include "tools/output.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "trireme/base/error.hpp"

namespace trireme::tools {

OutputFile::OutputFile(std::filesystem::path path, Leftover leftover) : path_(std::move(path)) {
  if (path_ == "-") {
    file_ = base::FileDescriptor(::dup(STDOUT_FILENO));
    return;
  }
  partial_ = path_;
  partial_ += ".partial";
  file_ = base::FileDescriptor(
      ::open(partial_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (!file_.valid()) base::throw_errno(errno, "create", partial_);
  // Some file systems have no locks: that is no reason not to write.
  const bool taken = ::flock(file_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  VALIDATE(!taken, ExitCode::locked, partial_.string(),
           " is being written by another process: wait for its end, or name another output");
  if (leftover == Leftover::dropped) cut(0);
}

void OutputFile::cut(uint64_t bytes) {
  if (::ftruncate(file_.get(), static_cast<off_t>(bytes)) != 0)
    base::throw_errno(errno, "shorten", partial_);
}

void OutputFile::write(std::string_view lines) {
  base::write_all(file_.get(), lines, partial_.empty() ? path_ : partial_);
}

void OutputFile::finish() {
  if (partial_.empty()) return;
  if (::fsync(file_.get()) != 0) base::throw_errno(errno, "sync", partial_);
  if (std::rename(partial_.c_str(), path_.c_str()) != 0)
    base::throw_errno(errno, "rename", partial_);
}

}  // namespace trireme::tools
