#include "trireme/base/command.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

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
  const int error = ::posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  return error == 0 ? child : -1;
}

void reap(pid_t child, CommandResult& result) {
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  result.ran = result.ran && WIFEXITED(status);
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
}

}  // namespace

CommandResult run_command(const std::vector<std::string>& command, double timeout_seconds) {
  CommandResult result;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return result;
  const FileDescriptor read_end(ends[0]);
  FileDescriptor write_end(ends[1]);
  const pid_t child = start(command, write_end.get());
  write_end = FileDescriptor();
  if (child < 0) return result;

  const Stopwatch watch;
  for (;;) {
    const double left = timeout_seconds - watch.seconds();
    pollfd waiting{read_end.get(), POLLIN, 0};
    const int ready = left > 0 ? ::poll(&waiting, 1, static_cast<int>(left * 1000) + 1) : 0;
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) {
      ::kill(child, SIGKILL);
      break;
    }
    char buffer[4096];
    const ssize_t got = ::read(read_end.get(), buffer, sizeof buffer);
    if (got <= 0) {
      result.ran = true;
      break;
    }
    if (result.output.size() < largest_output) result.output.append(buffer, static_cast<size_t>(got));
  }
  reap(child, result);
  return result;
}

}  // namespace trireme::base
