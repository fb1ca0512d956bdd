// `trireme selftest`: whether this machine gives the right numbers, on the ranks and devices at
// hand, in seconds.
#include "torch/torch.hpp"

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "tools/selftest_parts.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/log.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/base/text.hpp"
#include "trireme/comm/agree.hpp"
#include "trireme/comm/run_watch.hpp"
#include "trireme/config/fault.hpp"
#include "trireme/kernels/runtime.hpp"
#include "trireme/learn/same_inputs.hpp"
#include "trireme/machine/device.hpp"
#include "trireme/machine/threads.hpp"
#include "trireme/tools/commands.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::tools {
namespace {

// A folder inside another one; rank 0 makes and removes it.
class ScratchFolder {
 public:
  // Collective; made by rank 0 under a name that no other job has.
  ScratchFolder(const comm::CommView& world, const std::filesystem::path& folder) : world_(world) {
    const std::string name = base::text("trireme-selftest-", ::getpid(), "-",
                                        static_cast<int64_t>(base::monotonic_seconds() * 1e6));
    path_ = folder / world.broadcast(name, 0);
    comm::fail_together_on_root(world, [this] {
      std::error_code error;
      std::filesystem::create_directories(path_, error);
      if (error) base::throw_errno(error.value(), "make the folder", path_);
    });
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ~ScratchFolder() {
    std::error_code ignored;
    if (world_.rank() == 0) std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  comm::CommView world_;
  std::filesystem::path path_;
};

class SelfTest {
 public:
  SelfTest(const SelftestCommand& command, const comm::Session& session)
      : command_(command),
        session_(session),
        options_(options_of(command)),
        roles_(comm::make_roles(options_, session.world())),
        watch_(options_, roles_, session.facts().thread_multiple) {
    comm::compare_collectives(1);
    config::install_faults(options_.fault, options_.run.dir, world().rank());
  }

  ExitCode run() {
    std::optional<kernels::Runtime> runtime;
    std::optional<at::Device> device;
    part("selftest environment", "", [&] {
      device = environment(runtime);
      return found_in(*device);
    });
    part("selftest collectives", "", [&] { return selftest::collectives(world()); });
    const std::pair<config::DType, const char*> types[] = {{config::DType::f32, ", fp32"},
                                                           {config::DType::bf16, ", bf16"}};
    for (const auto& [type, name] : types) {
      std::optional<selftest::Model> model;
      part("selftest weight sync", name, [&] {
        model.emplace(roles_, *device, type);
        return model->weight_sync();
      });
      part("selftest optimizer", name, [&] { return model->optimizer_steps(); });
      if (type != config::DType::f32) continue;
      part("selftest checkpoint", "", [&] {
        const ScratchFolder scratch(world(), command_.folder);
        return model->checkpoint(scratch.path());
      });
    }
    return report(device ? device->str() : std::string("none"));
  }

 private:
  static config::Options options_of(const SelftestCommand& command) {
    config::Options options;
    options.run.dir = command.folder.string();
    options.run.device = command.device;
    options.run.hang_timeout.seconds = options.run.io_timeout.seconds = command.timeout;
    options.fault.at = command.fault_at;
    options.fault.io_fail = command.fault_io_fail;
    config::check_faults(options.fault);
    return options;
  }

  const comm::CommView& world() const { return session_.world(); }

  at::Device environment(std::optional<kernels::Runtime>& runtime) {
    learn::require_same_program(world());
    const machine::Threads threads =
        machine::plan_threads(options_, world(), roles_.topology, {1, 0, 0}).trainer;
    threads.use();
    const at::Device device = machine::choose_device(options_.run.device, world(), roles_.topology);
    machine::use_device(device, false, world());
    runtime.emplace(threads.count, device.is_cpu() ? -1 : device.index());
    return device;
  }

  selftest::Finding found_in(const at::Device& device) const {
    return device.is_cpu() ? selftest::Finding{"", static_cast<double>(world().size()), "ranks"}
                           : selftest::Finding{"", static_cast<double>(machine::visible_gpus()),
                                               "GPUs of a rank"};
  }

  // Runs one part, inside a region of the name `place`, and notes what it found. After a part that
  // failed none is run: it may be what the others need. Collective.
  void part(trace::Name place, const char* type, const std::function<selftest::Finding()>& work) {
    const std::string name = base::text(place.c_str(), type).substr(std::strlen("selftest "));
    nlohmann::ordered_json row{{"part", name}};
    if (code_ != ExitCode::done) {
      row["verdict"] = "not run";
      parts_.push_back(std::move(row));
      return;
    }
    const base::Stopwatch watch;
    selftest::Finding finding;
    std::optional<trace::Region> region;
    // First the region, where faults strike one rank alone; then work whose errors all ranks see.
    auto failure = comm::failure_of_any(world(), [&] { region.emplace(place); });
    if (!failure) failure = comm::failure_of_any(world(), [&] { finding = work(); });
    if (failure) {
      code_ = failure->code;
      finding.problem = failure->message;
    } else if (!finding.problem.empty()) {
      code_ = ExitCode::internal;
    }
    row["verdict"] = finding.problem.empty() ? "passed" : "failed";
    if (!failure && std::isfinite(finding.figure)) row["figure"] = finding.figure;
    if (!failure) row["unit"] = finding.unit;
    row["seconds"] = std::round(1e3 * world().max(watch.seconds())) / 1e3;
    if (!finding.problem.empty()) {
      row["problem"] = finding.problem;
      problem_ = base::text("selftest: ", name, ": ", finding.problem);
    }
    parts_.push_back(std::move(row));
  }

  ExitCode report(const std::string& device) {
    if (world().rank() != 0) return code_;
    nlohmann::ordered_json line;
    line["selftest"] = code_ == ExitCode::done ? "passed" : "failed";
    line["exit_code"] = static_cast<int>(code_);
    line["ranks"] = world().size();
    line["nodes"] = roles_.topology.nodes;
    line["device"] = device;
    line["parts"] = parts_;
    std::fputs((line.dump() + "\n").c_str(), stdout);
    std::fflush(stdout);
    if (!problem_.empty()) log::error(problem_);
    return code_;
  }

  const SelftestCommand& command_;
  const comm::Session& session_;
  config::Options options_;
  comm::Roles roles_;
  comm::RunWatch watch_;
  ExitCode code_ = ExitCode::done;
  std::string problem_;
  nlohmann::ordered_json parts_ = nlohmann::ordered_json::array();
};

}  // namespace

ExitCode run_selftest(const SelftestCommand& command, const comm::Session& session) {
  return SelfTest(command, session).run();
}

}  // namespace trireme::tools
