#include "lock_liveness.hpp"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "manifest.hpp"
#include "trireme/base/text.hpp"
#include "trireme/job/facts.hpp"
#include "trireme/job/process_stat.hpp"

namespace trireme::checkpoint {
namespace {

// -1: no such process.
int64_t start_time(int64_t pid) {
  return job::stat_field("/proc/" + std::to_string(pid) + "/stat", job::stat_start_ticks)
      .value_or(-1);
}

std::string namespace_id() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  char link[64] = "";
  const ssize_t size = ::readlink("/proc/self/ns/pid", link, sizeof link - 1);
  return boot + " " + std::string(link, static_cast<size_t>(std::max<ssize_t>(size, 0)));
}

std::string cluster_here() {
  return job::sane_job(job::process_environment("SLURM_CLUSTER_NAME").value_or(""));
}

}  // namespace

LockHolder this_process() {
  LockHolder me;
  me.job = job::job_label(job::process_environment);
  me.cluster = cluster_here();
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

bool was_before_a_reboot(const LockHolder& holder) {
  const auto boot_of = [](const std::string& id) { return id.substr(0, id.find(' ')); };
  const LockHolder me = this_process();
  const std::string before = boot_of(holder.namespace_id);
  return holder.host == me.host && !before.empty() && before != boot_of(me.namespace_id);
}

bool is_of_another_cluster(const LockHolder& holder) {
  const std::string here = cluster_here();
  return !here.empty() && !holder.cluster.empty() && holder.cluster != here;
}

Liveness ask_scheduler(const LockHolder& holder) {
  std::istringstream words(holder.job);
  std::string kind;
  std::string id;
  words >> kind >> id;
  id = job::sane_job(id);
  if (id.empty() || id.starts_with('-')) return Liveness::unknown;
  if (kind == "slurm") {
    if (is_of_another_cluster(holder))
      return Liveness::unknown;  // its jobs are not known here, nor gone
    const auto r = job::ask_system({"squeue", "-h", "-j", id, "-o", "%T"});
    if (!r.ran || r.exit_code == 127) return Liveness::unknown;
    if (r.exit_code != 0)
      return r.output.find("Invalid job id") != std::string::npos ? Liveness::gone
                                                                  : Liveness::unknown;
    return r.output.find_first_not_of(" \n") == std::string::npos ? Liveness::gone
                                                                  : Liveness::alive;
  }
  if (kind == "pbs") {
    const auto r = job::ask_system({"qstat", id});
    if (!r.ran || r.exit_code == 127) return Liveness::unknown;
    if (r.exit_code == 0) return Liveness::alive;
    const bool gone = r.output.find("Unknown Job") != std::string::npos ||
                      r.output.find("has finished") != std::string::npos;
    return gone ? Liveness::gone : Liveness::unknown;
  }
  return Liveness::unknown;
}

std::string describe(const LockHolder& holder) {
  return base::text(holder.job.empty() ? "no job" : "job " + holder.job,
                    holder.cluster.empty() ? "" : " of cluster " + holder.cluster, ", host ",
                    holder.host, ", pid ", holder.pid, ", since ", holder.since);
}

}  // namespace trireme::checkpoint
