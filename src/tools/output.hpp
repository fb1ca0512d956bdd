// The output file of a tool: written beside its final name, renamed when complete, so that a file
// with the final name is whole. Lines are flushed as they come. "-" is standard output. One process
// at a time writes it: a second one throws UserError(locked), on file systems that have locks.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "trireme/base/files.hpp"

namespace trireme::tools {

class OutputFile {
 public:
  // What to do with lines that a run which did not come to its end has left.
  enum class Leftover : uint8_t { dropped, kept };
  explicit OutputFile(std::filesystem::path path, Leftover leftover = Leftover::dropped);

  void write(std::string_view lines);
  // Syncs and gives the file its final name.
  void finish();

  // The file until then; empty: standard output.
  const std::filesystem::path& partial() const { return partial_; }
  // Keeps its first `bytes`; lines come behind them.
  void cut(uint64_t bytes);

 private:
  std::filesystem::path path_;
  std::filesystem::path partial_;
  base::FileDescriptor file_;
};

}  // namespace trireme::tools
