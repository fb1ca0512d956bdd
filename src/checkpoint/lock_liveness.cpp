#include "lock_liveness.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "manifest.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/base/text.hpp"

extern char** environ;

namespace trireme::checkpoint {
namespace {

constexpr double scheduler_seconds = 15;
constexpr size_t largest_output = size_t{64} << 10;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

// Only what job numbers are made of: the text goes on a command line.
std::string sane_job(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-' || c == '[' || c == ']') out += c;
  }
  return out.substr(0, 100);
}

std::string this_job() {
  if (const std::string id = sane_job(environment("SLURM_JOB_ID")); !id.empty()) {
    const std::string restart = sane_job(environment("SLURM_RESTART_COUNT"));
    return "slurm " + id + (restart.empty() ? "" : " restart " + restart);
  }
  if (const std::string id = sane_job(environment("PBS_JOBID")); !id.empty()) return "pbs " + id;
  return "";
}

// Field 22 of /proc/<pid>/stat; the name in field 2 may hold blanks and parentheses. -1: no such process.
int64_t start_time(int64_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  if (!std::getline(file, line)) return -1;
  std::istringstream fields(line.substr(std::min(line.rfind(')') + 1, line.size())));
  std::string word;
  for (int field = 3; field < 22; ++field) fields >> word;
  int64_t value = -1;
  fields >> value;
  return value;
}

std::string namespace_id() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  char link[64] = "";
  const ssize_t size = ::readlink("/proc/self/ns/pid", link, sizeof link - 1);
  return boot + " " + std::string(link, static_cast<size_t>(std::max<ssize_t>(size, 0)));
}

void reap(pid_t child, CommandResult& result) {
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  result.ran = result.ran && WIFEXITED(status);
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
}

}  // namespace

LockHolder this_process() {
  LockHolder me;
  me.job = this_job();
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  me.host = host;
  me.pid = ::getpid();
  me.started = start_time(me.pid);
  me.namespace_id = namespace_id();
  me.since = utc_now();
  return me;
}

Liveness ask_process_table(const LockHolder& holder) {
  if (holder.namespace_id != namespace_id()) return Liveness::unknown;
  return start_time(holder.pid) == holder.started ? Liveness::alive : Liveness::gone;
}

Liveness ask_scheduler(const LockHolder& holder) {
  std::istringstream words(holder.job);
  std::string kind;
  std::string id;
  words >> kind >> id;
  id = sane_job(id);
  if (id.empty() || id.starts_with('-')) return Liveness::unknown;
  if (kind == "slurm") {
    const CommandResult r = run_command({"squeue", "-h", "-j", id, "-o", "%T"}, scheduler_seconds);
    if (!r.ran || r.exit_code == 127) return Liveness::unknown;
    if (r.exit_code != 0) return r.output.find("Invalid job id") != std::string::npos ? Liveness::gone : Liveness::unknown;
    return r.output.find_first_not_of(" \n") == std::string::npos ? Liveness::gone : Liveness::alive;
  }
  if (kind == "pbs") {
    const CommandResult r = run_command({"qstat", id}, scheduler_seconds);
    if (!r.ran || r.exit_code == 127) return Liveness::unknown;
    if (r.exit_code == 0) return Liveness::alive;
    const bool gone = r.output.find("Unknown Job") != std::string::npos || r.output.find("has finished") != std::string::npos;
    return gone ? Liveness::gone : Liveness::unknown;
  }
  return Liveness::unknown;
}

std::string describe(const LockHolder& holder) {
  return base::text(holder.job.empty() ? "no job" : "job " + holder.job, ", host ", holder.host, ", pid ", holder.pid, ", since ", holder.since);
}

CommandResult run_command(const std::vector<std::string>& command, double timeout_seconds) {
  CommandResult result;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return result;
  const base::FileDescriptor read_end(ends[0]);
  base::FileDescriptor write_end(ends[1]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, write_end.get(), 1);
  posix_spawn_file_actions_adddup2(&actions, write_end.get(), 2);
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  pid_t child = -1;
  const int error = ::posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  write_end = base::FileDescriptor();
  if (error != 0) return result;

  const base::Stopwatch watch;
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

}  // namespace trireme::checkpoint
