#include "trireme/report/run_output.hpp"

#include <utility>

#include "trireme/base/files.hpp"
#include "trireme/comm/clock.hpp"
#include "trireme/report/run_end.hpp"
#include "trireme/report/side_output.hpp"
#include "trireme/trace/perfetto.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::report {

RunOutput::RunOutput(const comm::CommView& world, Rank rank, std::filesystem::path folder,
                     std::string trace_file, trace::RolesRun roles_run,
                     std::function<base::Written()> written)
    : world_(world),
      rank_(std::move(rank)),
      folder_(std::move(folder)),
      trace_file_(std::move(trace_file)),
      roles_run_(roles_run),
      clock_offset_(comm::measure_clock_offset(world)),
      origin_(world.broadcast_value(trace::start_seconds(), 0)),
      lines_(world.rank() == 0 ? std::make_unique<ProgressLines>(std::move(written)) : nullptr) {}

void RunOutput::write_trace() const {
  if (trace_file_.empty()) return;
  const trace::Phase phase{"write trace"};
  trace::RankIdentity identity;
  identity.rank = world_.rank();
  identity.roles = rank_.roles;
  identity.host = rank_.host;
  identity.clock_offset = clock_offset_;
  identity.origin = origin_;
  const std::vector<std::string> fragments = world_.gather(trace::trace_events(identity), 0);
  if (world_.rank() != 0) return;
  side_output(trace_file_, [&] {
    base::write_file_atomically(folder_ / trace_file_, trace::merge_trace(fragments));
  });
}

void RunOutput::finish(const std::string& title, const std::vector<double>& curve,
                       const IterationMetrics& last, const GenerationTotals& generation) const {
  write_trace();
  write_end(world_, rank_.roles, folder_,
            {since_start_.seconds(), roles_run_, generation, last, title, curve});
}

}  // namespace trireme::report
