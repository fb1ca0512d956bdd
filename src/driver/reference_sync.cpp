#include "torch/torch.hpp"

#include "driver/reference_sync.hpp"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>

#include "trireme/base/error.hpp"
#include "trireme/base/log.hpp"
#include "trireme/checkpoint/position.hpp"
#include "trireme/comm/agree.hpp"
#include "trireme/learn/sharded_models.hpp"
#include "trireme/report/side_output.hpp"

namespace trireme::driver {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view prefix = "iteration-";

fs::path folder_of(const PpoRoles& roles, int64_t iteration) {
  char name[32];
  std::snprintf(name, sizeof name, "iteration-%06lld", static_cast<long long>(iteration));
  return roles.run.folder.path() / "reference" / name;
}

// The iteration in the name of a reference's folder.
std::optional<int64_t> number_of(const fs::path& path) {
  const std::string name = path.filename().string();
  if (!name.starts_with(prefix)) return std::nullopt;
  try {
    return std::stoll(name.substr(prefix.size()));
  } catch (const std::exception&) { return std::nullopt; }
}

// Checkpoints that are kept may be resumed from: the oldest of them has the oldest reference. Until
// this start has committed one the next start may begin where it did, or at the one that is being
// written: then all of them stay.
void remove_old(const PpoRoles& roles, int64_t iteration) {
  const int64_t every = roles.run.options.reference.sync_every;
  int64_t oldest = iteration;
  bool has_own = false;
  for (const auto& one : checkpoint::list_committed(roles.run.folder.checkpoints())) {
    oldest = std::min(oldest, one.step - 1);
    has_own = has_own || one.fence == roles.run.folder.lock().fence();
  }
  if (!has_own) return;
  for (const auto& entry : fs::directory_iterator(roles.run.folder.path() / "reference")) {
    const auto number = number_of(entry.path());
    if (number && *number < oldest / every * every) fs::remove_all(entry.path());
  }
}

// Collective over world.
void load(PpoRoles& roles, const fs::path& folder) {
  std::optional<learn::ModelStart> start;
  comm::fail_together(roles.run.roles.world, [&] {
    VALIDATE(
        fs::exists(folder), ExitCode::input_missing, "the reference ", folder.string(),
        " does not exist (reference.sync_every: the checkpoint was made with it): copy it from "
        "the run of the checkpoint, or begin anew");
    if (!roles.scorer) return;
    config::Options options = roles.run.options;
    options.reference.path = folder.string();
    start = learn::reference_start(options, roles.actor_start);
  });
  if (start) roles.scorer->load_reference(start->reader());
}

}  // namespace

void sync_reference(PpoRoles& roles, int64_t iteration) {
  const config::Options& options = roles.run.options;
  const int64_t every = options.reference.sync_every;
  if (every == 0 || iteration % every != 0) return;
  const fs::path folder = folder_of(roles, iteration);
  const bool full = options.model.compute() == config::DType::f32;  // the reference's type
  learn::export_model(
      roles.run.roles, roles.actor_start, roles.trainer ? &roles.trainer->actor() : nullptr, folder,
      {.type = full ? model::StoredType::f32 : model::StoredType::bf16, .kept = nullptr});
  load(roles, folder);
  if (!roles.run.leads()) return;
  log::info(base::text("reference: the actor after iteration ", iteration));
  report::side_output("reference", [&] { remove_old(roles, iteration); });
}

void restore_reference(PpoRoles& roles, int64_t iteration) {
  const int64_t every = roles.run.options.reference.sync_every;
  if (every == 0 || iteration < every) return;
  load(roles, folder_of(roles, iteration / every * every));
}

}  // namespace trireme::driver
