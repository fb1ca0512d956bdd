// The end of a save: a complete temporary folder becomes the checkpoint, old ones go. One process.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>

#include "trireme/checkpoint/position.hpp"

namespace trireme::checkpoint {

// Which checkpoints stay; as in SaveOptions.
struct Retention {
  int64_t fence = 0;  // of the run that commits
  int64_t keep = 3;
  int64_t pinned = -1;
  std::optional<Position> resumed_from{};
  std::function<void(int64_t)> before_removal{};
};

// Renames `temporary` to `folder`/step-N, makes it durable, points `latest` at it and removes what
// need not stay. A checkpoint of the same step (from a run that was resumed from an earlier one) is
// replaced in one step.
void commit(const std::filesystem::path& temporary, const std::filesystem::path& folder,
            int64_t step, const Retention& retention);

// Best effort, for clean-ups after an error; never throws.
void remove_quietly(const std::filesystem::path& path) noexcept;

// Name of the temporary folder of a save: ".step-000120.7.tmp".
std::filesystem::path temporary_folder(const std::filesystem::path& folder, int64_t step,
                                       int64_t fence);

}  // namespace trireme::checkpoint
