// Names of a run's exports, folders in the Hugging Face layout beside its checkpoints.
#pragma once

#include <filesystem>
#include <string>

namespace trireme::report {

// What stands behind the name of an export: the moving average, the critic.
inline constexpr const char* ema_suffix = "-ema";
inline constexpr const char* critic_suffix = "-critic";

// The export that is made with the checkpoint of this name: "hf-step-000120".
std::string export_name(const std::string& checkpoint);
// Removes it, the moving average and the critic from a run's folder: exports go with their
// checkpoint. A failure is a warning. One process, any thread.
void remove_export(const std::filesystem::path& run, const std::string& checkpoint);

}  // namespace trireme::report
