#include "trireme/base/command.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "trireme/base/files.hpp"
#include "trireme/base/stopwatch.hpp"

extern char** environ;

namespace trireme::base {
namespace {

constexpr size_t largest_output = size_t{64} << 10;

// The child's process number; -1 when it could not be started.
pid_t start(const std::vector<std::string>& command, int output) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, output, 1);
  posix_spawn_file_actions_adddup2(&actions, output, 2);
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  pid_t child = -1;
  const int error =
      ::posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  return error == 0 ? child : -1;
}

class Deadline {
 public:
  explicit Deadline(double seconds) : seconds_(seconds) {}
  // Rounded up, at least 0.
  int milliseconds_left() const {
    const double left = seconds_ - watch_.seconds();
    return left > 0 ? static_cast<int>(left * 1000) + 1 : 0;
  }

 private:
  Stopwatch watch_;
  double seconds_;
};

// Until the command and whatever it started close their ends, or the deadline.
std::string collect(int from, const Deadline& deadline) {
  std::string output;
  while (const int left = deadline.milliseconds_left()) {
    pollfd waiting{from, POLLIN, 0};
    const int ready = ::poll(&waiting, 1, left);
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) break;
    char buffer[4096];
    const ssize_t got = ::read(from, buffer, sizeof buffer);
    if (got <= 0) break;
    output.append(buffer, std::min(static_cast<size_t>(got), largest_output - output.size()));
  }
  return output;
}

// Whether the child ended before the deadline; a closed output does not say so.
bool ended(pid_t child, const Deadline& deadline, int& status) {
  for (;;) {
    const pid_t got = ::waitpid(child, &status, WNOHANG);
    if (got == child) return true;
    if ((got < 0 && errno != EINTR) || deadline.milliseconds_left() == 0) return false;
    ::poll(nullptr, 0, 1);
  }
}

void end(pid_t child) {
  ::kill(child, SIGKILL);
  while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {}
}

}  // namespace

CommandResult run_command(const std::vector<std::string>& command, double timeout_seconds) {
  CommandResult result;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return result;
  const FileDescriptor read_end(ends[0]);
  FileDescriptor write_end(ends[1]);
  const Deadline deadline(timeout_seconds);
  const pid_t child = start(command, write_end.get());
  write_end = FileDescriptor();
  if (child < 0) return result;

  result.output = collect(read_end.get(), deadline);
  int status = 0;
  if (!ended(child, deadline, status)) {
    end(child);
    return result;
  }
  result.ran = WIFEXITED(status);
  if (result.ran) result.exit_code = WEXITSTATUS(status);
  return result;
}

}  // namespace trireme::base
