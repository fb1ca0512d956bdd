// The order of the checkpoints in a folder.
#pragma once

#include <compare>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace trireme::checkpoint {

// Where a checkpoint stands among those of its folder. A later start of a run has a greater fence
// (run_lock.hpp), so what it saves is newer even when it went back to an earlier step.
struct Position {
  int64_t fence = -1;
  int64_t step = -1;
  auto operator<=>(const Position&) const = default;
};

// Checkpoints of `folder` whose manifest is whole, the latest save first; none when there is no
// folder. `not_whole` receives what is wrong with the others. Not collective. Throws io_error or
// permission when the folder or a manifest cannot be read now: an entry that was not seen is not
// for absent.
std::vector<Position> list_committed(const std::filesystem::path& folder,
                                     std::vector<std::string>* not_whole = nullptr);

// The link `best` in `folder` to the checkpoint of `step`, replaced in one go; nothing where there
// is none of that step. What fails is a warning: the checkpoint itself is there. Not collective.
void link_best(const std::filesystem::path& folder, int64_t step);

}  // namespace trireme::checkpoint
