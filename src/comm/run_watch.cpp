#include "trireme/comm/run_watch.hpp"

#include <utility>

#include "trireme/trace/activity.hpp"

namespace trireme::comm {

RunWatch::RunWatch(const config::Options& options, const Roles& roles, bool thread_multiple)
    : dog_(roles.world, {.deadlines = {.usual = options.run.hang_timeout.seconds,
                                       .io = options.run.io_timeout.seconds},
                         .report_folder = report_folder(options),
                         .thread_multiple = thread_multiple,
                         .look = [this, host = roles.topology.host_of_node.at(static_cast<size_t>(
                                            roles.topology.node))] { return life_sign(host); },
                         .activity = [] { return trace::activity(); }}) {}

void RunWatch::ask(std::function<job::StopReason()> wish) {
  const std::lock_guard lock(mutex_);
  wish_ = std::move(wish);
}

LifeSign RunWatch::life_sign(const std::string& host) {
  trace::Standing now = trace::standing();
  const std::lock_guard lock(mutex_);
  const auto wish = wish_ ? wish_() : job::StopReason::none;
  return {.silent = 0,
          .waiting = now.waiting,
          .io = now.io,
          .host = host,
          .where = std::move(now.where),
          .call = std::move(now.call),
          .wish = wish,
          .written = base::written_so_far()};
}

}  // namespace trireme::comm
