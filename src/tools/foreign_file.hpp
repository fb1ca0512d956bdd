// Settings of another system as a file has them: a command line, a YAML file, or the keyword
// arguments of a ...Config(...) in Python.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace trireme::tools {

struct ForeignSetting {
  std::string name;                 // without --; of nested YAML with dots
  std::vector<std::string> values;  // as texts, without quotes; a flag alone: "true"
  bool is_list = false;
  std::string unread = {};  // why the value cannot be read (an expression, a shell variable), or ""
};

// By the file's name: .yaml, .yml, .json, .py; all else is a command line or a script with one.
// Throws UserError: input_missing, permission, bad_data with the line.
std::vector<ForeignSetting> read_foreign_file(const std::filesystem::path& path);

}  // namespace trireme::tools
