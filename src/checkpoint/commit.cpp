#include "commit.hpp"

#include <cstdio>
#include <string>
#include <vector>

#include "file_steps.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/fault_point.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/log.hpp"
#include "trireme/base/progress.hpp"
#include "trireme/checkpoint/writer.hpp"

namespace trireme::checkpoint {
namespace {

// The checkpoint that stays beside the newest ones: that of the step `pinned`, or the one to which
// `best` leads, while that step could not be saved.
std::string pinned_name(const std::filesystem::path& folder, int64_t pinned) {
  if (pinned < 0) return {};
  std::error_code none;
  const std::string name = folder_name(pinned);
  return std::filesystem::exists(folder / name, none)
             ? name
             : std::filesystem::read_symlink(folder / "best", none).filename().string();
}

// Removes what is beyond `keep`, counting this run's own checkpoints and those that led to where it
// began. Neither counted nor removed is what is newer than the point from which the run was resumed
// and not its own: a branch that was left on purpose, a checkpoint that could not be read, or
// somebody else's.
void remove_old(const std::filesystem::path& folder, int64_t just_committed,
                const Retention& retention) {
  std::vector<std::string> not_whole;
  const std::vector<Position> all = list_committed(folder, &not_whole);
  for (const std::string& problem : not_whole)
    log::warning(base::text("not counted as a checkpoint and left as it is: ", problem));
  const std::string pinned = pinned_name(folder, retention.pinned);
  int64_t kept = 0;
  for (const Position& found : all) {
    const bool mine = found.fence == retention.fence;
    const bool behind_me = retention.resumed_from && found <= *retention.resumed_from;
    if (!mine && !behind_me) continue;
    const std::string name = folder_name(found.step);
    if (++kept <= retention.keep || found.step == just_committed || name == pinned) continue;
    if (retention.before_removal) retention.before_removal(found.step);
    // Out of sight in one step, so that a crash in the middle leaves no half checkpoint under a
    // good name.
    const std::filesystem::path doomed = folder / ("." + name + ".old.tmp");
    remove_quietly(doomed);
    rename_path(folder / name, doomed);
    remove_quietly(doomed);
  }
}

}  // namespace

std::string folder_name(int64_t step) {
  char text[32];
  std::snprintf(text, sizeof text, "step-%06ld", static_cast<long>(step));
  return text;
}

std::filesystem::path temporary_folder(const std::filesystem::path& folder, int64_t step,
                                       int64_t fence) {
  return folder / base::text(".", folder_name(step), ".", fence, ".tmp");
}

void remove_quietly(const std::filesystem::path& path) noexcept {
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

void remove_leftovers(const std::filesystem::path& folder) {
  const base::FileWork work{"listing", folder};
  std::error_code error;
  std::vector<std::filesystem::path> leftovers;
  std::vector<std::filesystem::path> aside;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(".step-")) continue;
    if (name.ends_with(".tmp")) leftovers.push_back(entry.path());
    if (name.ends_with(".tmp.old")) aside.push_back(entry.path());
  }
  // exchange_by_renames() was interrupted. Before the new checkpoint had the name, what lies aside
  // is the committed one; afterwards it was replaced.
  for (const auto& path : aside) {
    const std::string name = path.filename().string();
    const std::filesystem::path target = folder / name.substr(1, name.find('.', 1) - 1);
    if (std::filesystem::exists(target)) {
      remove_quietly(path);
    } else {
      rename_path(path, target);
      base::sync_folder(folder);
      log::warning(base::text(
          target.string(), " was moved aside when an earlier start ended, and has its name again"));
    }
  }
  for (const auto& path : leftovers) remove_quietly(path);
}

void commit(const std::filesystem::path& temporary, const std::filesystem::path& folder,
            int64_t step, const Retention& retention) {
  const std::filesystem::path target = folder / folder_name(step);
  const bool replaces = std::filesystem::exists(target);
  base::fault_point("ckpt.before_rename");
  if (replaces) {
    exchange_paths(temporary, target);
  } else {
    rename_path(temporary, target);
  }
  base::fault_point("ckpt.after_rename");
  base::sync_folder(folder);
  base::fault_point("ckpt.parent_synced");
  base::write_file_atomically(folder / "latest", folder_name(step) + "\n");
  base::fault_point("ckpt.latest_moved");
  if (replaces) remove_quietly(temporary);
  try {
    remove_old(folder, step, retention);
  } catch (const UserError& error) {  // the new checkpoint is committed: an old one too many is no
                                      // reason to stop
    log::warning(base::text("an old checkpoint could not be removed (", error.what(), ")"));
  }
  base::fault_point("ckpt.pruned");
}

}  // namespace trireme::checkpoint
