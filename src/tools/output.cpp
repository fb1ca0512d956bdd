#include "tools/output.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

#include "tools/job_record.hpp"
#include "trireme/base/error.hpp"

namespace trireme::tools {
namespace {

namespace fs = std::filesystem;

constexpr const char* mark = ".trireme-partial";  // in folders that are being written

fs::path partial_of(const fs::path& path) { return with_ending(path, ".partial"); }

bool is_same(const fs::path& a, const fs::path& b) {
  std::error_code error;
  return fs::equivalent(a, b, error) && !error;
}

// The file is the input, or one of the files in the folder that is.
bool is_of(const fs::path& file, const fs::path& input) {
  std::error_code error;
  if (is_same(file, input)) return true;
  if (!fs::exists(file, error) || !fs::is_directory(input, error)) return false;
  for (const auto& entry : fs::directory_iterator(input, error)) {
    if (is_same(entry.path(), file)) return true;
  }
  return false;
}

// Whether a file of `input` lies in `folder`, where a model is going to be written.
bool has_files_in(const fs::path& input, const fs::path& folder) {
  std::error_code error;
  if (!fs::is_directory(input, error)) return false;
  if (is_same(input, folder)) return true;
  for (const auto& entry : fs::directory_iterator(input, error)) {
    if (fs::is_regular_file(entry.path(), error) &&
        fs::canonical(entry.path(), error).parent_path() == folder)
      return true;
  }
  return false;
}

[[noreturn]] void refuse_input(const fs::path& output, const fs::path& input) {
  throw UserError(
      ExitCode::usage,
      base::text("the output ", output.string(), " is an input, or a file of one (", input.string(),
                 "): writing it would destroy what is read: name another "
                 "output"));
}

// Takes the lock of a descriptor; some file systems have none: that is no reason not to write.
void lock(int fd, const fs::path& path) {
  const bool taken = ::flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  VALIDATE(!taken, ExitCode::locked, path.string(),
           " is being written by another process: wait for its end, or name another output");
}

bool still_names(const fs::path& path, int fd) {
  struct stat by_name {
  }, by_fd{};
  return ::stat(path.c_str(), &by_name) == 0 && ::fstat(fd, &by_fd) == 0 &&
         by_name.st_dev == by_fd.st_dev && by_name.st_ino == by_fd.st_ino;
}

// Empty, or what a run of this program has left that did not come to its end.
bool is_unused(const fs::path& folder) {
  std::error_code error;
  return is_unfinished(folder) || fs::is_empty(folder, error);
}

// A file or device that the shell has opened; nullopt: another path.
std::optional<int> descriptor_of(const std::string& path) {
  if (path == "-" || path == "/dev/stdout") return STDOUT_FILENO;
  if (path == "/dev/stderr") return STDERR_FILENO;
  for (const std::string_view folder : {"/dev/fd/", "/proc/self/fd/"}) {
    if (!path.starts_with(folder)) continue;
    int number = 0;
    const char* const end = path.data() + path.size();
    const auto read = std::from_chars(path.data() + folder.size(), end, number);
    if (read.ec == std::errc() && read.ptr == end) return number;
  }
  return std::nullopt;
}

void clear(const fs::path& folder, const std::string& but) {
  std::vector<fs::path> left;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().filename() != but) left.push_back(entry.path());
  }
  for (const fs::path& one : left) fs::remove_all(one);
}

void require_name(const fs::path& output) {
  VALIDATE(!output.empty(), ExitCode::usage,
           "the output has an empty name (a variable of the shell that is not set?): name it");
}

[[noreturn]] void refuse_existing(const fs::path& output) {
  throw UserError(ExitCode::usage,
                  base::text("the output ", output.string(),
                             " is there already: name another one, or give --force "
                             "to replace it"));
}

}  // namespace

bool is_stream(const fs::path& path) {
  if (descriptor_of(path)) return true;
  std::error_code error;
  const fs::file_type type = fs::status(path, error).type();
  return type == fs::file_type::character || type == fs::file_type::fifo ||
         type == fs::file_type::socket;
}

bool is_unfinished(const fs::path& folder) {
  std::error_code error;
  return fs::exists(folder / mark, error);
}

fs::path with_ending(fs::path path, const char* ending) {
  path += ending;
  return path;
}

fs::path output_path(const fs::path& path) {
  std::error_code error;
  fs::path target = fs::absolute(path, error);
  constexpr int most_links = 40;
  for (int links = 0; fs::is_symlink(target, error) && !fs::exists(target, error); ++links) {
    VALIDATE(links < most_links, ExitCode::usage, "the output ", path.string(),
             " is a link that leads to itself: name another one");
    target = target.parent_path() / fs::read_symlink(target, error);  // where it is going to be
  }
  fs::path out = fs::weakly_canonical(target, error);
  if (error) out = path;
  return out.has_filename() ? out : out.parent_path();  // "folder/"
}

void check_output_file(const fs::path& output, const InputPaths& inputs, Existing existing) {
  require_name(output);
  if (is_stream(output)) return;
  const fs::path target = output_path(output);
  for (const fs::path& input : inputs) {
    if (input.empty()) continue;
    for (const char* ending : {"", ".partial", ".job", ".done"}) {  // all that is written
      if (is_of(with_ending(target, ending), input)) refuse_input(output, input);
    }
  }
  std::error_code error;
  VALIDATE(!fs::is_directory(target, error), ExitCode::usage, "the output ", output.string(),
           " is a folder: name a file");
  if (existing == Existing::refused && fs::exists(target, error)) refuse_existing(output);
}

void check_output_folder(const fs::path& output, const InputPaths& inputs, Existing existing) {
  require_name(output);
  const fs::path target = output_path(output);
  for (const fs::path& input : inputs) {
    if (!input.empty() && (is_same(target, input) || has_files_in(input, target)))
      refuse_input(output, input);
  }
  std::error_code error;
  if (!fs::exists(target, error)) return;
  VALIDATE(fs::is_directory(target, error), ExitCode::usage, "the output ", output.string(),
           " is a file: name a folder");
  if (existing == Existing::replaced || is_unused(target)) return;
  throw UserError(ExitCode::usage,
                  base::text("the output ", output.string(), " is a folder that has files (",
                             fs::directory_iterator(target)->path().filename().string(),
                             ", ...): name another "
                             "one, or give --force to replace the model in it (other files stay)"));
}

OutputFile::OutputFile(fs::path path, Existing existing, Leftover leftover)
    : path_(std::move(path)), leftover_(leftover) {
  if (const auto descriptor = descriptor_of(path_)) {
    file_ = base::FileDescriptor(::dup(*descriptor));
    if (!file_.valid()) base::throw_errno(errno, "open", path_);
  } else if (is_stream(path_)) {
    file_ = base::FileDescriptor(::open(path_.c_str(), O_WRONLY | O_CLOEXEC));
    if (!file_.valid()) base::throw_errno(errno, "open", path_);
  } else {
    path_ = output_path(path_);
    partial_ = partial_of(path_);
    if (existing == Existing::refused) {
      for (const char* ending : {".job", ".done"}) require_record(with_ending(path_, ending));
    }
    take_partial(existing);
    if (leftover_ == Leftover::dropped && !partial_.empty()) drop_leftover(existing);
  }
}

// Of a run of this tool. Lines that somebody may want stay without --force.
void OutputFile::drop_leftover(Existing existing) {
  job_file_ = with_ending(path_, ".job");
  VALIDATE(existing == Existing::replaced || fs::file_size(partial_) == 0 ||
               is_record_of_dropped(job_file_),
           ExitCode::usage, partial_.string(),
           " is there, and this tool has not left it (answers of a `trireme generate` that is not "
           "finished?): name another output, remove it, or give --force to replace it");
  record_dropped(job_file_);
  cut(0);
}

void OutputFile::take_partial(Existing existing) {
  for (;;) {
    file_ = base::FileDescriptor(
        ::open(partial_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0666));
    if (!file_.valid()) base::throw_errno(errno, "create", partial_);
    lock(file_.get(), partial_);
    if (still_names(partial_, file_.get())) break;  // else another process has finished it
  }
  std::error_code error;
  if (existing == Existing::replaced || !fs::exists(path_, error)) return;
  if (leftover_ == Leftover::dropped || fs::file_size(partial_, error) == 0)
    fs::remove(partial_, error);
  partial_.clear();
  refuse_existing(path_);
}

OutputFile::~OutputFile() {
  if (partial_.empty() || leftover_ == Leftover::kept) return;
  std::error_code ignored;
  fs::remove(partial_, ignored);
  fs::remove(job_file_, ignored);
}

void OutputFile::cut(uint64_t bytes) {
  if (::ftruncate(file_.get(), static_cast<off_t>(bytes)) != 0)
    base::throw_errno(errno, "shorten", partial_);
}

void OutputFile::write(std::string_view lines) {
  base::write_all(file_.get(), lines, partial_.empty() ? path_ : partial_);
}

void OutputFile::finish(const ToolJob& job) {
  if (partial_.empty()) return;
  if (::fsync(file_.get()) != 0) base::throw_errno(errno, "sync", partial_);
  record_file(path_, partial_, job);
  if (std::rename(partial_.c_str(), path_.c_str()) != 0)
    base::throw_errno(errno, "rename", partial_);
  partial_.clear();
  std::error_code ignored;  // what stays of it says no more than the record
  fs::remove(job_file_, ignored);
}

void write_output(const fs::path& output, std::string_view content) {
  if (is_stream(output)) {
    OutputFile(output, Existing::refused).write(content);
  } else {
    base::write_file_atomically(output, content);
  }
}

OutputFolder::OutputFolder(const fs::path& path, const InputPaths& inputs, Existing existing) {
  check_output_folder(path, inputs, existing);
  final_ = output_path(path);
  std::error_code error;
  const bool there = fs::is_directory(final_, error);  // an empty one may be a mount point
  const bool makes_new = !there || is_unused(final_);
  writing_ = there ? final_ : partial_of(final_);
  fs::create_directories(writing_, error);
  if (error) base::throw_errno(error.value(), "create the folder", writing_);
  lock_ = base::FileDescriptor(::open(writing_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!lock_.valid()) base::throw_errno(errno, "open", writing_);
  lock(lock_.get(), writing_);
  if (!makes_new) {
    remove_record(writing_);
    return;
  }
  VALIDATE(is_unused(writing_), ExitCode::usage, writing_.string(),
           " has files and is not what a run of this program has left: remove it, or name another "
           "output");
  base::write_file_atomically(writing_ / mark, "being written by trireme\n");
  clear(writing_, mark);  // left by a run that did not come to its end
  unfinished_ = true;
}

OutputFolder::~OutputFolder() {
  if (!unfinished_) return;
  std::error_code ignored;
  if (writing_ != final_) {
    fs::remove_all(writing_, ignored);
  } else {
    try {
      clear(writing_, "");
    } catch (const fs::filesystem_error&) {  // the mark says what it is
    }
  }
}

void OutputFolder::finish(const ToolJob& job) {
  record_folder(writing_, job);
  if (!unfinished_) return;
  std::error_code ignored;
  fs::remove(writing_ / mark, ignored);
  unfinished_ = false;
  if (writing_ == final_) return;
  if (std::rename(writing_.c_str(), final_.c_str()) != 0) {
    const int problem = errno;
    fs::remove_all(writing_, ignored);
    VALIDATE(problem != ENOTEMPTY && problem != EEXIST, ExitCode::usage, final_.string(),
             " has got files while its model was written: name another output");
    base::throw_errno(problem, "rename", writing_);
  }
  base::sync_folder(final_.parent_path());
}

}  // namespace trireme::tools
