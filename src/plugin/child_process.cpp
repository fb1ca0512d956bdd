#include "plugin/child_process.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>

#include "trireme/base/error.hpp"
#include "trireme/base/stopwatch.hpp"

extern "C" char** environ;

namespace trireme::plugin {
namespace {

struct Pipe {
  base::FileDescriptor read, write;
};

Pipe make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    base::throw_errno(errno, "make a pipe to a program of the deck", "pipe");
  return {base::FileDescriptor(ends[0]), base::FileDescriptor(ends[1])};
}

void make_non_blocking(int fd) { ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK); }

class SpawnSetup {
 public:
  SpawnSetup(int input, short flags) {
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, input, 0);
    posix_spawnattr_init(&attributes);
    sigset_t all;
    sigfillset(&all);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setflags(
        &attributes, static_cast<short>(flags | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF));
  }
  ~SpawnSetup() {
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
  }
  SpawnSetup(const SpawnSetup&) = delete;
  SpawnSetup& operator=(const SpawnSetup&) = delete;

  void append_to(int stream, const std::string& file) {
    posix_spawn_file_actions_addopen(&actions, stream, file.empty() ? "/dev/null" : file.c_str(),
                                     O_WRONLY | O_CREAT | O_APPEND, 0644);
  }
  // An errno value, 0 for success. `command[0]` is searched in PATH.
  int start(const std::vector<std::string>& command, pid_t& pid) {
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 34)
    // Descriptors of MPI, the device or the run folder that some library left open across exec.
    posix_spawn_file_actions_addclosefrom_np(&actions, 3);
#endif
    std::vector<char*> arguments;
    for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    return ::posix_spawnp(&pid, arguments[0], &actions, &attributes, arguments.data(), environ);
  }

  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
};

}  // namespace

namespace {

// Why a program could not be started, and what helps.
std::string start_problem(const Program& program, int error) {
  const std::string& file = program.command[0];
  const bool there = file.find('/') != std::string::npos && std::filesystem::exists(file);
  std::string advice = base::text("check ", program.key, " and PATH");
  if (error == EACCES && there) {
    advice = base::text("make it executable (chmod +x), or name its interpreter in ", program.key);
  } else if (error == ENOEXEC) {
    advice = base::text(
        "begin it with a line as #!/usr/bin/env python3, or name its interpreter in ", program.key);
  } else if (error == ENOENT && there) {
    advice = base::text(
        "the interpreter that its first line names is missing (or that line ends as on Windows): "
        "correct it, or name the interpreter in ",
        program.key);
  }
  return base::text("cannot start the ", program.kind, " '", file, "' (", std::strerror(error),
                    "): ", advice);
}

}  // namespace

// The death signal of Linux (PR_SET_PDEATHSIG) would reach the child alone, not what it started,
// and only if it is set between fork and exec, which a process with MPI, a device and threads
// should not do by itself. The end of a pipe is seen however this process ends. A shell is on every
// machine; it is given a number. It has a session of its own and all signals blocked: signals that
// a launcher sends to the job's processes do not reach it, SIGKILL does.
ProcessGuard::ProcessGuard(pid_t group) {
  Pipe pipe = make_pipe();
  SpawnSetup setup(pipe.read.get(), POSIX_SPAWN_SETSID);
  setup.append_to(1, "");  // a launcher waits while any process has the run's streams
  setup.append_to(2, "");
  sigset_t all;
  sigfillset(&all);
  posix_spawnattr_setsigmask(&setup.attributes, &all);
  const int error = setup.start({"/bin/sh", "-c", "read -r end; kill -s KILL -- \"-$1\"",
                                 "trireme-plugin-guard", std::to_string(group)},
                                pid_);
  VALIDATE(error == 0, ExitCode::unfit_environment,
           "cannot start /bin/sh, which ends the deck's programs with their run (",
           std::strerror(error), "): check the machine's limits on processes");
  alive_ = std::move(pipe.write);
}

ProcessGuard::~ProcessGuard() {
  ::kill(pid_, SIGKILL);  // before the pipe closes
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {}
}

std::string Exit::text() const {
  return by_signal ? base::text("killed by signal ", code, " (", strsignal(code), ")")
                   : base::text("exit code ", code);
}

ChildProcess::ChildProcess(const Program& program, const std::filesystem::path& log) {
  Pipe to_child = make_pipe(), from_child = make_pipe();
  SpawnSetup setup(to_child.read.get(), POSIX_SPAWN_SETPGROUP);
  posix_spawn_file_actions_adddup2(&setup.actions, from_child.write.get(), 1);
  setup.append_to(2, log.string());
  posix_spawnattr_setpgroup(&setup.attributes, 0);
  // Batch systems and launchers send the run's signals to every process of the job. USR1 and USR2
  // are meant for the run, which still needs its program to finish the iteration, and would end
  // most programs. TERM is left alone: programs that it starts must be able to get it.
  sigset_t run_signals;
  sigemptyset(&run_signals);
  for (const int signal : {SIGUSR1, SIGUSR2}) sigaddset(&run_signals, signal);
  posix_spawnattr_setsigmask(&setup.attributes, &run_signals);
  const int error = setup.start(program.command, pid_);
  VALIDATE(error == 0, error == EACCES ? ExitCode::permission : ExitCode::input_missing,
           start_problem(program, error));
  input_ = std::move(to_child.write);
  output_ = std::move(from_child.read);
  make_non_blocking(input_.get());
  make_non_blocking(output_.get());
  try {
    guard_.emplace(pid_);
  } catch (...) {
    kill_now();
    throw;
  }
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
      guard_.reset();
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
  while (::sigtimedwait(&pipe_signal, nullptr, &now) == SIGPIPE) {}
  ::pthread_sigmask(SIG_UNBLOCK, &pipe_signal, nullptr);
}

}  // namespace trireme::plugin
