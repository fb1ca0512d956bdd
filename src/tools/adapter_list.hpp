// The adapters of `trireme generate`: one for all prompts, or several that prompts select by name.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tools/output.hpp"
#include "trireme/config/choices.hpp"
#include "trireme/data/prompt_set.hpp"
#include "trireme/model/adapter_files.hpp"

namespace trireme::tools {

class AdapterList {
 public:
  // Of --adapter: "FOLDER", or "NAME=FOLDER" any number of times. Throws UserError(usage).
  AdapterList(const std::vector<std::string>& words, config::AdapterForm form);

  model::AdaptedModel open(const std::filesystem::path& model) const;
  // Request::adapter of a prompt: by its column `adapter`; -1: none, or the list has no names.
  // Throws UserError(bad_data) with file:line for a name that the list does not have.
  int32_t number_of(const data::InputRecord& prompt) const;
  const InputPaths& folders() const { return folders_; }
  // Adds what decides about answers.
  void add_to(ToolJob& job) const;

 private:
  std::vector<std::string> names_;  // empty: one adapter at most
  std::vector<std::filesystem::path> folders_;
  config::AdapterForm form_;
};

}  // namespace trireme::tools
