// A child process with pipes to its standard input and output, in a process group of its own.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/files.hpp"
#include "trireme/plugin/programs.hpp"

namespace trireme::plugin {

// How a child ended.
struct Exit {
  bool by_signal = false;
  int code = 0;  // exit code or signal number
  std::string text() const;
};

// Kills a process group as soon as this process is gone, however it ends: destructors, _exit,
// MPI_Abort, a signal, SIGKILL.
class ProcessGuard {
 public:
  // Throws UserError(unfit_environment) when it cannot be started.
  explicit ProcessGuard(pid_t group);
  // Dismissed; the group is left alone.
  ~ProcessGuard();
  ProcessGuard(const ProcessGuard&) = delete;
  ProcessGuard& operator=(const ProcessGuard&) = delete;

 private:
  pid_t pid_ = -1;
  base::FileDescriptor alive_;
};

// The child and all that it starts in its process group end with this process.
class ChildProcess {
 public:
  // Starts program.command[0], searched in PATH, without a shell. Its stderr is appended to `log`
  // (dropped when empty); it inherits no other descriptor and the default signal dispositions.
  // Throws UserError: input_missing or permission when it cannot be started.
  ChildProcess(const Program& program, const std::filesystem::path& log);
  // Closes its input, gives it a moment to leave, then kills its process group.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  // Ends of the pipes, non-blocking.
  int input() const { return input_.get(); }
  int output() const { return output_.get(); }
  // Kills the process group and collects the child.
  Exit kill_now();
  // Waits up to `seconds` for it to end by itself, then kills it.
  Exit wait(double seconds);

 private:
  bool collect(double seconds);

  pid_t pid_ = -1;
  base::FileDescriptor input_;
  base::FileDescriptor output_;
  std::optional<ProcessGuard> guard_;  // until the child is collected
  bool collected_ = false;
  int status_ = 0;
};

// Blocks SIGPIPE for the calling thread: writing to a child that has gone is an error code, not the
// end of the program.
class BlockSigpipe {
 public:
  BlockSigpipe();
  ~BlockSigpipe();
  BlockSigpipe(const BlockSigpipe&) = delete;
  BlockSigpipe& operator=(const BlockSigpipe&) = delete;

 private:
  bool was_blocked_ = false;
};

}  // namespace trireme::plugin
