// The output file of a tool: written beside its final name, renamed when complete, so that a file with the final name is
// whole. Lines are flushed as they come. "-" is standard output.
#pragma once

#include <filesystem>
#include <string_view>

#include "trireme/base/files.hpp"

namespace trireme::tools {

class OutputFile {
 public:
  explicit OutputFile(std::filesystem::path path);
  void write(std::string_view lines);
  // Syncs and gives the file its final name.
  void finish();

 private:
  std::filesystem::path path_;
  std::filesystem::path partial_;
  base::FileDescriptor file_;
};

}  // namespace trireme::tools
