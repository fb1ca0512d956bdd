#include "trireme/job/end_of_job.hpp"

#include <algorithm>
#include <array>
#include <ctime>

#include "trireme/base/log.hpp"
#include "trireme/base/text.hpp"
#include "trireme/job/facts.hpp"

namespace trireme::job {
namespace {

void log_job(const JobFacts& job, bool limit_given) {
  if (job.scheduler == Scheduler::none) return;
  log::info(base::text("job: ", describe(job), " (", base::join(job.sources), ")"));
  if (!job.doubt.empty()) log::warning(job.doubt);
  if (job.remark.empty()) return;
  const std::string remark =
      base::text("the scheduler does not say when the job ends (", job.remark, ")");
  if (limit_given) {
    log::info(remark + ": run.walltime counts");
  } else {
    log::warning(remark + ": give it as run.walltime");
  }
}

}  // namespace

std::string clock_time(double seconds_from_now) {
  const std::time_t now = std::time(nullptr);
  const std::time_t then = now + static_cast<std::time_t>(std::max(0.0, seconds_from_now));
  std::tm local_now{};
  std::tm local{};
  localtime_r(&now, &local_now);
  localtime_r(&then, &local);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(),
                local.tm_yday == local_now.tm_yday ? "%H:%M:%S" : "%a %H:%M", &local);
  return text.data();
}

Walltime walltime_of_job(double deck_seconds, int nodes_used) {
  const JobFacts job =
      read_job(process_environment, ask_system, static_cast<double>(std::time(nullptr)));
  log_job(job, deck_seconds > 0);
  if (job.nodes > nodes_used) {
    log::warning(base::text(
        "the job has ", job.nodes, " nodes but its ranks run on ", nodes_used,
        ": start them with srun, or mpirun --map-by ppr:N:node with the job's host file"));
  }
  const double age = process_age();
  const auto limit = choose_limit(deck_seconds, age, job.seconds_left);
  if (!limit.seconds_left) return Walltime(std::nullopt);
  log::info(base::text("walltime: the job ends at about ", clock_time(*limit.seconds_left), ", in ",
                       base::human_seconds(std::max(0.0, *limit.seconds_left)), " (", limit.source,
                       "); the run stops in time for a checkpoint"));
  return Walltime(*limit.seconds_left, leaving_margin(*limit.seconds_left, age));
}

}  // namespace trireme::job
