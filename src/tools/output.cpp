#include "tools/output.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

namespace trireme::tools {

OutputFile::OutputFile(std::filesystem::path path) : path_(std::move(path)) {
  if (path_ == "-") {
    file_ = base::FileDescriptor(::dup(STDOUT_FILENO));
    return;
  }
  partial_ = path_;
  partial_ += ".partial";
  file_ = base::FileDescriptor(::open(partial_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!file_.valid()) base::throw_errno(errno, "create", partial_);
}

void OutputFile::write(std::string_view lines) { base::write_all(file_.get(), lines, partial_.empty() ? path_ : partial_); }

void OutputFile::finish() {
  if (partial_.empty()) return;
  if (::fsync(file_.get()) != 0) base::throw_errno(errno, "sync", partial_);
  if (std::rename(partial_.c_str(), path_.c_str()) != 0) base::throw_errno(errno, "rename", partial_);
}

}  // namespace trireme::tools
