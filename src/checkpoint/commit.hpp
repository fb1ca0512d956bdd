// The end of a save: a complete temporary folder becomes the checkpoint, old ones go. One process.
#pragma once

#include <filesystem>

namespace trireme::checkpoint {

// Renames `temporary` to `folder`/step-N, makes it durable, points `latest` at it and removes what is beyond `keep` but the step `pinned`.
// A checkpoint of the same step (from a run that was resumed from an earlier one) is replaced in one step.
void commit(const std::filesystem::path& temporary, const std::filesystem::path& folder, int64_t step, int64_t keep, int64_t pinned);

// Best effort, for clean-ups after an error; never throws.
void remove_quietly(const std::filesystem::path& path) noexcept;

// Name of the temporary folder of a save: ".step-000120.7.tmp".
std::filesystem::path temporary_folder(const std::filesystem::path& folder, int64_t step, int64_t fence);

}  // namespace trireme::checkpoint
