// Facts about this job from the batch system and the launcher: read from the environment, and where
// that is not enough from one question to the scheduler. The parsers are pure functions of texts,
// so tests feed them what real systems wrote.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/base/command.hpp"

namespace trireme::job {

// A variable's value; nullopt when it is unset or empty.
using Environment = std::function<std::optional<std::string>(const char* name)>;
// Output of a command; tests answer themselves.
using Ask = std::function<base::CommandResult(const std::vector<std::string>& command)>;

std::optional<std::string> process_environment(const char* name);
// Runs it, for at most 15 seconds.
base::CommandResult ask_system(const std::vector<std::string>& command);

enum class Scheduler : uint8_t { none, slurm, pbs };

struct JobFacts {
  Scheduler scheduler = Scheduler::none;
  std::string id;  // "4711"; a task of an array: "4711_3" (Slurm), "4711[3].server" (PBS)
  std::string name;
  int restarts = 0;                    // of this job by the scheduler; 0: the first start
  int nodes = 0;                       // allocated; 0: not said
  std::string node_list;               // "n[001-004]" (Slurm), "a, b" (PBS)
  std::optional<double> seconds_left;  // until the scheduler ends the job, when this was read
  std::vector<std::string> sources;    // "restarts: SLURM_RESTART_COUNT", for the log
  std::string remark;  // why seconds_left is not known, when a question was of no use
  std::string doubt;   // an end that was ignored, since it cannot be this job's; for a warning
};

// Asks squeue or qstat at most once, and only for what the environment does not say. `now`: seconds
// since the epoch.
JobFacts read_job(const Environment& environment, const Ask& ask, double now);
// "slurm 4711 restart 1", "pbs 12.server" or "": from the environment alone.
std::string job_label(const Environment& environment);
// "slurm 4711 (ppo_70b), restart 1, 4 nodes n[001-004]"
std::string describe(const JobFacts& job);

// The launcher's facts about this process; -1 or 0 where it does not say.
struct LaunchFacts {
  std::string launcher;  // "Open MPI", "PALS", "Slurm", "Intel MPI", "MPICH", "PMIx"; empty:
                         // started without one
  int rank = -1;
  int size = 0;
  int local_rank = -1;
  int local_size = 0;
  std::string sources;  // the variables that were used
};
LaunchFacts read_launch(const Environment& environment);
std::string describe(const LaunchFacts& launch);
// Whether this process speaks for the job before MPI does: rank 0, or started without a launcher.
// True on the one process that reports what all ranks see alike.
bool speaks_for_job(const Environment& environment);

// Only what job numbers are made of: such text goes onto command lines.
std::string sane_job(std::string_view text);

// "[days-][[hours:]minutes:]seconds" as squeue -o %L prints it; nullopt for UNLIMITED, NOT_SET,
// INVALID and the like.
std::optional<double> parse_slurm_time(std::string_view text);
// "[[hours:]minutes:]seconds" of PBS.
std::optional<double> parse_pbs_time(std::string_view text);
// The value of `name` in the text of `qstat -f`, whose long lines go on after a newline and a tab;
// "" when it is not there.
std::string pbs_attribute(std::string_view text, std::string_view name);
// Seconds left of `qstat -f`'s text: from stime and Resource_List.walltime, else from
// resources_used.walltime.
std::optional<double> pbs_seconds_left(std::string_view text, double now);
// Host names of a PBS node file (a line per process), each once, in order.
std::vector<std::string> pbs_nodes(std::string_view node_file);

}  // namespace trireme::job
