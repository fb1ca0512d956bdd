#include "reward/child_process.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <ctime>

#include "trireme/base/error.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/reward/reward.hpp"

extern "C" char** environ;

namespace trireme::reward {
namespace {

// Process groups that are alive, for kill_plugins(): lock-free, since it may run in a signal handler.
std::array<std::atomic<pid_t>, 64> live_groups{};

void remember(pid_t group) {
  for (auto& slot : live_groups) {
    pid_t empty = 0;
    if (slot.compare_exchange_strong(empty, group)) return;
  }
}
void forget(pid_t group) {
  for (auto& slot : live_groups) {
    pid_t expected = group;
    if (slot.compare_exchange_strong(expected, 0)) return;
  }
}

struct Pipe {
  base::FileDescriptor read, write;
};

Pipe make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) base::throw_errno(errno, "cannot make a pipe to the reward plugin", "pipe");
  return {base::FileDescriptor(ends[0]), base::FileDescriptor(ends[1])};
}

void make_non_blocking(int fd) { ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK); }

class SpawnSetup {
 public:
  SpawnSetup(const Pipe& input, const Pipe& output, const std::string& log) {
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, input.read.get(), 0);
    posix_spawn_file_actions_adddup2(&actions, output.write.get(), 1);
    posix_spawn_file_actions_addopen(&actions, 2, log.empty() ? "/dev/null" : log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 34)
    // Descriptors of MPI, the device or the run folder that some library left open across exec.
    posix_spawn_file_actions_addclosefrom_np(&actions, 3);
#endif
    posix_spawnattr_init(&attributes);
    // Batch systems and launchers send the run's signals to every process of the job. USR1 and USR2 are meant for the run, which
    // still needs its plugin to finish the iteration, and would end most programs. TERM is left alone: programs that a plugin
    // starts must be able to get it.
    sigset_t run_signals, all;
    sigemptyset(&run_signals);
    for (const int signal : {SIGUSR1, SIGUSR2}) sigaddset(&run_signals, signal);
    sigfillset(&all);
    posix_spawnattr_setsigmask(&attributes, &run_signals);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  }
  ~SpawnSetup() {
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
  }
  SpawnSetup(const SpawnSetup&) = delete;
  SpawnSetup& operator=(const SpawnSetup&) = delete;

  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
};

}  // namespace

void kill_plugins() noexcept {
  for (auto& slot : live_groups) {
    const pid_t group = slot.load();
    if (group > 0) ::kill(-group, SIGKILL);
  }
}

std::string Exit::text() const {
  return by_signal ? base::text("killed by signal ", code, " (", strsignal(code), ")") : base::text("exit code ", code);
}

ChildProcess::ChildProcess(const std::vector<std::string>& command, const std::filesystem::path& log) {
  Pipe to_child = make_pipe(), from_child = make_pipe();
  const SpawnSetup setup(to_child, from_child, log.string());
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const int error = ::posix_spawnp(&pid_, arguments[0], &setup.actions, &setup.attributes, arguments.data(), environ);
  VALIDATE(error == 0, error == EACCES ? ExitCode::permission : ExitCode::input_missing, "cannot start the reward plugin '",
           command[0], "' (", std::strerror(error), "): check reward.source.command and PATH");
  input_ = std::move(to_child.write);
  output_ = std::move(from_child.read);
  make_non_blocking(input_.get());
  make_non_blocking(output_.get());
  remember(pid_);
}

ChildProcess::~ChildProcess() {
  if (!collected_) wait(0.5);
}

bool ChildProcess::collect(double seconds) {
  const base::Stopwatch watch;
  while (!collected_) {
    const pid_t got = ::waitpid(pid_, &status_, WNOHANG);
    if (got == pid_ || (got < 0 && errno == ECHILD)) {
      collected_ = true;
      ::kill(-pid_, SIGKILL);  // grandchildren that are still there
      forget(pid_);
      break;
    }
    if (watch.seconds() >= seconds) return false;
    const timespec pause{0, 2'000'000};
    ::nanosleep(&pause, nullptr);
  }
  return true;
}

Exit ChildProcess::wait(double seconds) {
  input_ = base::FileDescriptor();
  if (!collect(seconds)) return kill_now();
  return WIFSIGNALED(status_) ? Exit{true, WTERMSIG(status_)} : Exit{false, WEXITSTATUS(status_)};
}

Exit ChildProcess::kill_now() {
  input_ = base::FileDescriptor();
  if (!collected_) {
    ::kill(-pid_, SIGKILL);
    collect(10);
  }
  return WIFSIGNALED(status_) ? Exit{true, WTERMSIG(status_)} : Exit{false, WEXITSTATUS(status_)};
}

BlockSigpipe::BlockSigpipe() {
  sigset_t pipe_signal, before;
  sigemptyset(&pipe_signal);
  sigaddset(&pipe_signal, SIGPIPE);
  ::pthread_sigmask(SIG_BLOCK, &pipe_signal, &before);
  was_blocked_ = sigismember(&before, SIGPIPE) == 1;
}

BlockSigpipe::~BlockSigpipe() {
  if (was_blocked_) return;
  sigset_t pipe_signal;
  sigemptyset(&pipe_signal);
  sigaddset(&pipe_signal, SIGPIPE);
  const timespec now{0, 0};
  while (::sigtimedwait(&pipe_signal, nullptr, &now) == SIGPIPE) {
  }
  ::pthread_sigmask(SIG_UNBLOCK, &pipe_signal, nullptr);
}

}  // namespace trireme::reward
