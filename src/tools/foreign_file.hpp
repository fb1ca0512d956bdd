// Settings of another system as a file has them: a command line, a YAML file, or the keyword
// arguments of a ...Config(...) in Python.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/config/foreign_names.hpp"

namespace trireme::tools {

struct ForeignSetting {
  std::string name;                 // without --; of nested YAML with dots
  std::vector<std::string> values;  // as texts, without quotes; a flag alone: "true"
  bool is_list = false;
  std::string unread = {};  // why the value cannot be read (an expression, a shell variable), or ""
};

struct ForeignFile {
  std::vector<ForeignSetting> settings;    // in their order: the last of a name counts
  std::optional<config::Trainer> trainer;  // where the file says it
};

// By the file's name: .yaml, .yml, .json, .py; all else is a command line or a script with one.
// Throws UserError: input_missing, permission, bad_data with the line, or where there is no
// setting.
ForeignFile read_foreign_file(const std::filesystem::path& path);

// A command line, or a script with one: flags, hydra's overrides. Variables that the script itself
// sets to one known value are expanded.
ForeignFile read_foreign_command(std::string_view text);
// The arguments of the trainer's ...Config(...), of LoraConfig and of the trainer.
ForeignFile read_foreign_python(std::string_view text, const std::string& file);

// "[a, b]" in a text becomes a list.
void split_foreign_list(ForeignSetting& setting);
// Letters, digits, "_", "-" and ".", beginning with a letter.
bool is_foreign_name(std::string_view text);

}  // namespace trireme::tools
