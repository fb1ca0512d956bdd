#include "commit.hpp"

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "file_steps.hpp"
#include "manifest.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/log.hpp"
#include "trireme/checkpoint/writer.hpp"

namespace trireme::checkpoint {
namespace {

struct Committed {
  int64_t fence = 0;
  int64_t step = 0;
  std::filesystem::path path;
};

// Checkpoints whose manifest can be read, latest save first: a later run has the greater fence, even when it went back to an
// earlier step.
std::vector<Committed> committed(const std::filesystem::path& folder) {
  std::vector<Committed> all;
  for (const int64_t step : list_steps(folder)) {
    const std::filesystem::path path = folder / folder_name(step);
    try {
      all.push_back({read_manifest(path).fence, step, path});
    } catch (const UserError& error) {
      log::warning(base::text(path.string(), " is not counted as a checkpoint and stays as it is (", error.what(), ")"));
    }
  }
  std::sort(all.begin(), all.end(), [](const Committed& a, const Committed& b) {
    return a.fence != b.fence ? a.fence > b.fence : a.step > b.step;
  });
  return all;
}

void remove_old(const std::filesystem::path& folder, int64_t just_committed, int64_t keep, int64_t pinned) {
  const std::vector<Committed> all = committed(folder);
  for (size_t i = static_cast<size_t>(keep); i < all.size(); ++i) {
    if (all[i].step == just_committed || all[i].step == pinned) continue;
    // Out of sight in one step, so that a crash in the middle leaves no half checkpoint under a good name.
    const std::filesystem::path doomed = folder / ("." + all[i].path.filename().string() + ".old.tmp");
    remove_quietly(doomed);
    rename_path(all[i].path, doomed);
    remove_quietly(doomed);
  }
}

}  // namespace

std::string folder_name(int64_t step) {
  char text[32];
  std::snprintf(text, sizeof text, "step-%06ld", static_cast<long>(step));
  return text;
}

std::filesystem::path temporary_folder(const std::filesystem::path& folder, int64_t step, int64_t fence) {
  return folder / base::text(".", folder_name(step), ".", fence, ".tmp");
}

void remove_quietly(const std::filesystem::path& path) noexcept {
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

void remove_leftovers(const std::filesystem::path& folder) {
  std::error_code error;
  std::vector<std::filesystem::path> leftovers;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(".step-") && name.ends_with(".tmp")) leftovers.push_back(entry.path());
  }
  for (const auto& path : leftovers) remove_quietly(path);
}

void commit(const std::filesystem::path& temporary, const std::filesystem::path& folder, int64_t step, int64_t keep, int64_t pinned) {
  const std::filesystem::path target = folder / folder_name(step);
  const bool replaces = std::filesystem::exists(target);
  crash_point("ckpt.before_rename");
  if (replaces) {
    exchange_paths(temporary, target);
  } else {
    rename_path(temporary, target);
  }
  crash_point("ckpt.after_rename");
  base::sync_folder(folder);
  crash_point("ckpt.parent_synced");
  base::write_file_atomically(folder / "latest", folder_name(step) + "\n");
  crash_point("ckpt.latest_moved");
  if (replaces) remove_quietly(temporary);
  try {
    remove_old(folder, step, keep, pinned);
  } catch (const UserError& error) {  // the new checkpoint is committed: an old one too many is no reason to stop
    log::warning(base::text("an old checkpoint could not be removed (", error.what(), ")"));
  }
  crash_point("ckpt.pruned");
}

}  // namespace trireme::checkpoint
