// A file that a sink makes anew and appends to.
#pragma once

#include <filesystem>
#include <string_view>

#include "trireme/base/files.hpp"

namespace trireme::report {

class GrownFile {
 public:
  // Makes the folder and an empty file. Throws UserError(io_error, permission).
  explicit GrownFile(std::filesystem::path path);
  // All of it or nothing: a piece of a record would end what a reader sees.
  void append(std::string_view bytes);
  const std::filesystem::path& path() const { return path_; }
  uint64_t size() const { return size_; }

 private:
  std::filesystem::path path_;
  base::FileDescriptor file_;
  uint64_t size_ = 0;
};

// Appends to a file that is opened and closed again; all of it or nothing. Makes the file, not its
// folder.
void append_to(const std::filesystem::path& path, std::string_view bytes);

}  // namespace trireme::report
