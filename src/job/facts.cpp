#include "trireme/job/facts.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <ctime>
#include <sstream>

#include "trireme/base/files.hpp"
#include "trireme/base/text.hpp"

namespace trireme::job {
namespace {

constexpr double question_seconds = 15;

template <class Integer = int>
std::optional<Integer> to_int(const std::optional<std::string>& text) {
  Integer value = 0;
  if (!text) return std::nullopt;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc{} || end != text->data() + text->size()) return std::nullopt;
  return value;
}

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

// "12:34:56" -> seconds; at most `most_parts` parts.
std::optional<double> clock_seconds(std::string_view text, int most_parts) {
  double total = 0;
  int parts = 0;
  for (size_t begin = 0; begin <= text.size(); ++parts) {
    const size_t end = std::min(text.find(':', begin), text.size());
    int value = 0;
    const auto [stop, error] = std::from_chars(text.data() + begin, text.data() + end, value);
    if (error != std::errc{} || stop != text.data() + end || value < 0) return std::nullopt;
    total = 60 * total + value;
    begin = end + 1;
  }
  if (parts > most_parts) return std::nullopt;
  return total;
}

// "Sat Nov 21 17:00:00 2026", local time, as qstat prints it.
std::optional<double> parse_date(const std::string& text) {
  std::tm time{};
  if (text.empty() || ::strptime(text.c_str(), "%a %b %d %H:%M:%S %Y", &time) == nullptr)
    return std::nullopt;
  time.tm_isdst = -1;
  const std::time_t seconds = std::mktime(&time);
  if (seconds < 0) return std::nullopt;
  return static_cast<double>(seconds);
}

// Takes a variable and remembers where the value came from.
class Reader {
 public:
  Reader(const Environment& environment, JobFacts& job) : environment_(environment), job_(job) {}
  std::optional<std::string> operator()(const char* what, const char* variable) {
    auto value = environment_(variable);
    if (value) job_.sources.push_back(base::text(what, ": ", variable));
    return value;
  }

 private:
  const Environment& environment_;
  JobFacts& job_;
};

// Seconds until the end that the environment names, where it can be that of this job. A shell that
// a job has left behind (tmux, screen) keeps its variables, and a later extension of the time limit
// does not change them: an end in the past is another one's.
std::optional<double> slurm_seconds_left(const Environment& environment, JobFacts& job,
                                         double now) {
  constexpr double longest = 10 * 365 * 86400.0;  // Slurm gives a job without a limit one year
  const auto text = environment("SLURM_JOB_END_TIME");
  if (!text) return std::nullopt;
  const auto end = to_int<int64_t>(text);
  const double left = end ? static_cast<double>(*end) - now : 0;
  if (end && left > 0 && left < longest) {
    job.sources.emplace_back("end: SLURM_JOB_END_TIME");
    return left;
  }
  job.doubt = base::text(
      "SLURM_JOB_END_TIME = ", text->substr(0, 40),
      end && left <= 0 ? base::text(" is ", base::human_seconds(-left),
                                    " in the past: it is not the end of this job, and is ignored")
                       : std::string(" is not the time at which a job ends: it is ignored"));
  if (end && left <= 0)
    job.doubt += " (the variables of a job that is over, or its limit was extended?)";
  return std::nullopt;
}

void ask_squeue(JobFacts& job, const std::string& id, const Ask& ask) {
  const auto answer = ask({"squeue", "-h", "-j", id, "-o", "%L"});
  if (!answer.ran || answer.exit_code != 0) {
    job.remark = answer.ran && answer.exit_code != 127
                     ? base::text("squeue says: ", trimmed(answer.output))
                     : "squeue gave no answer";
    return;
  }
  job.seconds_left = parse_slurm_time(trimmed(answer.output));
  if (job.seconds_left) job.sources.emplace_back("end: squeue -o %L");
  if (!job.seconds_left) job.remark = base::text("squeue says: ", trimmed(answer.output));
}

JobFacts read_slurm(const Environment& environment, const Ask& ask, double now) {
  JobFacts job;
  job.scheduler = Scheduler::slurm;
  Reader read(environment, job);
  const std::string own = sane_job(*read("job", "SLURM_JOB_ID"));
  job.id = own;
  if (const auto array = environment("SLURM_ARRAY_JOB_ID")) {
    job.id = sane_job(*array) + "_" + sane_job(read("array", "SLURM_ARRAY_TASK_ID").value_or(""));
  }
  job.name = environment("SLURM_JOB_NAME").value_or("");
  job.restarts = to_int(read("restarts", "SLURM_RESTART_COUNT")).value_or(0);
  job.nodes = to_int(environment("SLURM_JOB_NUM_NODES")).value_or(0);
  job.node_list = read("nodes", "SLURM_JOB_NODELIST").value_or("");
  job.seconds_left = slurm_seconds_left(environment, job, now);
  if (!job.seconds_left) ask_squeue(job, own, ask);
  return job;
}

void ask_qstat(JobFacts& job, const Ask& ask, double now) {
  const auto answer = ask({"qstat", "-f", job.id});
  if (!answer.ran || answer.exit_code != 0) {
    job.remark = answer.ran && answer.exit_code != 127
                     ? base::text("qstat says: ", trimmed(answer.output))
                     : "qstat gave no answer";
    return;
  }
  if (const auto runs = to_int(pbs_attribute(answer.output, "run_count"))) {
    job.restarts = std::max(0, *runs - 1);
    job.sources.emplace_back("restarts: qstat -f, run_count");
  }
  job.seconds_left = pbs_seconds_left(answer.output, now);
  if (job.seconds_left && *job.seconds_left <= 0) {
    job.doubt = base::text("qstat -f says that job ", job.id, " ended ",
                           base::human_seconds(-*job.seconds_left),
                           " ago: that is not the end of this one, and is ignored (the variables "
                           "of a job that is over, "
                           "or a clock or time zone that is not the server's?)");
    job.remark = "its walltime is over";
    job.seconds_left.reset();
    return;
  }
  if (job.seconds_left) job.sources.emplace_back("end: qstat -f, stime and Resource_List.walltime");
  if (!job.seconds_left) job.remark = "qstat -f names no walltime";
}

JobFacts read_pbs(const Environment& environment, const Ask& ask, double now) {
  JobFacts job;
  job.scheduler = Scheduler::pbs;
  Reader read(environment, job);
  job.id = sane_job(*read("job", "PBS_JOBID"));
  job.name = environment("PBS_JOBNAME").value_or("");
  if (const auto file = read("nodes", "PBS_NODEFILE")) {
    const auto nodes = pbs_nodes(base::read_if_there(*file));
    job.nodes = static_cast<int>(nodes.size());
    job.node_list = base::join(nodes);
  }
  ask_qstat(job, ask, now);
  return job;
}

// The variables of one launcher; the first that is set of each list counts.
struct LauncherRow {
  const char* name;
  const char* marker;  // must be set as well
  std::array<const char*, 2> rank, size, local_rank, local_size;
};
// Order: variables that a launcher's daemons inherit must not hide it. Hydra's and Open
// MPI's are often started by srun, whose variables then describe the daemons.
constexpr std::array launchers{
    LauncherRow{"Open MPI",
                nullptr,
                {"OMPI_COMM_WORLD_RANK"},
                {"OMPI_COMM_WORLD_SIZE"},
                {"OMPI_COMM_WORLD_LOCAL_RANK"},
                {"OMPI_COMM_WORLD_LOCAL_SIZE"}},
    LauncherRow{"PALS",
                nullptr,
                {"PALS_RANKID"},
                {"PALS_SIZE", "PMI_SIZE"},
                {"PALS_LOCAL_RANKID", "PMI_LOCAL_RANK"},
                {"PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE"}},
    LauncherRow{"Intel MPI",
                "I_MPI_MPIRUN",
                {"PMI_RANK"},
                {"PMI_SIZE"},
                {"MPI_LOCALRANKID"},
                {"MPI_LOCALNRANKS"}},
    LauncherRow{"MPICH",
                "MPI_LOCALRANKID",
                {"PMI_RANK"},
                {"PMI_SIZE"},
                {"MPI_LOCALRANKID"},
                {"MPI_LOCALNRANKS"}},
    LauncherRow{"Slurm",
                "SLURM_STEP_NUM_TASKS",
                {"SLURM_PROCID"},
                {"SLURM_STEP_NUM_TASKS"},
                {"SLURM_LOCALID"},
                {nullptr}},
    LauncherRow{
        "PMIx", nullptr, {"PMIX_RANK"}, {"PMIX_SIZE"}, {"PMIX_LOCAL_RANK"}, {"PMIX_LOCAL_SIZE"}},
    LauncherRow{"PMI", nullptr, {"PMI_RANK"}, {"PMI_SIZE"}, {"PMI_LOCAL_RANK"}, {"PMI_LOCAL_SIZE"}},
};

}  // namespace

std::optional<std::string> process_environment(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

base::CommandResult ask_system(const std::vector<std::string>& command) {
  return base::run_command(command, question_seconds);
}

std::string sane_job(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-' ||
        c == '[' || c == ']')
      out += c;
  }
  return out.substr(0, 100);
}

std::optional<double> parse_slurm_time(std::string_view text) {
  text = trimmed(text);
  int days = 0;
  if (const size_t dash = text.find('-'); dash != std::string_view::npos) {
    const auto given = to_int(std::string(text.substr(0, dash)));
    if (!given || *given < 0) return std::nullopt;
    days = *given;
    text.remove_prefix(dash + 1);
  }
  const auto rest = clock_seconds(text, 3);
  if (!rest) return std::nullopt;
  return 86400.0 * days + *rest;
}

std::optional<double> parse_pbs_time(std::string_view text) {
  return clock_seconds(trimmed(text), 3);
}

std::string pbs_attribute(std::string_view text, std::string_view name) {
  std::string joined;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\n' && i + 1 < text.size() && text[i + 1] == '\t') {
      ++i;  // the line goes on
    } else {
      joined += text[i];
    }
  }
  std::istringstream lines(joined);
  const std::string start = std::string(name) + " = ";
  for (std::string line; std::getline(lines, line);) {
    const std::string_view content = trimmed(line);
    if (content.starts_with(start)) return std::string(content.substr(start.size()));
  }
  return "";
}

std::optional<double> pbs_seconds_left(std::string_view text, double now) {
  const auto limit = parse_pbs_time(pbs_attribute(text, "Resource_List.walltime"));
  if (!limit) return std::nullopt;
  const auto start = parse_date(pbs_attribute(text, "stime"));
  if (start && *start + *limit > now) return *start + *limit - now;
  // An end in the past is of another clock or time zone: the job's used time counts then.
  if (const auto used = parse_pbs_time(pbs_attribute(text, "resources_used.walltime")))
    return *limit - *used;
  if (start) return *start + *limit - now;
  return std::nullopt;
}

std::vector<std::string> pbs_nodes(std::string_view node_file) {
  std::vector<std::string> nodes;
  std::istringstream lines{std::string(node_file)};
  for (std::string line; std::getline(lines, line);) {
    const std::string host(trimmed(line));
    if (!host.empty() && std::find(nodes.begin(), nodes.end(), host) == nodes.end())
      nodes.push_back(host);
  }
  return nodes;
}

JobFacts read_job(const Environment& environment, const Ask& ask, double now) {
  if (environment("SLURM_JOB_ID")) return read_slurm(environment, ask, now);
  if (environment("PBS_JOBID")) return read_pbs(environment, ask, now);
  return {};
}

std::string job_label(const Environment& environment) {
  if (const auto id = environment("SLURM_JOB_ID"); id && !sane_job(*id).empty()) {
    const auto restart = environment("SLURM_RESTART_COUNT");
    return base::text("slurm ", sane_job(*id), restart ? " restart " + sane_job(*restart) : "");
  }
  if (const auto id = environment("PBS_JOBID"); id && !sane_job(*id).empty())
    return "pbs " + sane_job(*id);
  return "";
}

std::string describe(const JobFacts& job) {
  if (job.scheduler == Scheduler::none) return "no batch system";
  std::string text = base::text(job.scheduler == Scheduler::slurm ? "slurm " : "pbs ", job.id);
  if (!job.name.empty()) text += " (" + job.name + ")";
  text += job.restarts == 0 ? ", first start" : base::text(", restart ", job.restarts);
  if (job.nodes > 0)
    text += base::text(", ", job.nodes, job.nodes == 1 ? " node " : " nodes ", job.node_list);
  return text;
}

LaunchFacts read_launch(const Environment& environment) {
  for (const LauncherRow& row : launchers) {
    LaunchFacts facts;
    const auto take = [&](const std::array<const char*, 2>& names, int absent) {
      for (const char* name : names) {
        const auto value = name == nullptr ? std::nullopt : to_int(environment(name));
        if (!value) continue;
        facts.sources += (facts.sources.empty() ? "" : ", ") + std::string(name);
        return *value;
      }
      return absent;
    };
    if (row.marker != nullptr && !environment(row.marker)) continue;
    facts.rank = take(row.rank, -1);
    if (facts.rank < 0) continue;
    facts.launcher = row.name;
    facts.size = take(row.size, 0);
    facts.local_rank = take(row.local_rank, -1);
    facts.local_size = take(row.local_size, 0);
    return facts;
  }
  return {};
}

bool speaks_for_job(const Environment& environment) { return read_launch(environment).rank <= 0; }

std::string describe(const LaunchFacts& launch) {
  if (launch.launcher.empty()) return "started without a launcher";
  std::string text = base::text(launch.launcher, ": rank ", launch.rank);
  if (launch.size > 0) text += base::text(" of ", launch.size);
  if (launch.local_rank >= 0) text += base::text(", local rank ", launch.local_rank);
  if (launch.local_size > 0) text += base::text(" of ", launch.local_size);
  return text + " (" + launch.sources + ")";
}

}  // namespace trireme::job
