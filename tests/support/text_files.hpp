// Shared by the tests of `text` and `data`.
#pragma once

#include <gtest/gtest.h>

#include <unistd.h>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "support/source_folder.hpp"
#include "trireme/base/error.hpp"
#include "trireme/text/tokenizer.hpp"

namespace trireme::test {

// Vectors of another layout-compatible folder can be tested by TRIREME_PARITY_DIR.
inline std::filesystem::path parity_folder() {
  const char* folder = std::getenv("TRIREME_PARITY_DIR");
  return folder != nullptr ? std::filesystem::path(folder) : source_folder() / "tests/gold/parity";
}

// A tokenizer of the vectors: digits_bytelevel, ...
inline text::Tokenizer load_tokenizer(const std::string& kind) {
  return text::Tokenizer::load(parity_folder() / "tokenizers" / kind);
}

// A folder of its own that goes with the object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    static int count = 0;
    path_ = std::filesystem::temp_directory_path() /
            ("trireme-text-" + std::to_string(getpid()) + "-" + std::to_string(count++));
    std::filesystem::create_directories(path_);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::filesystem::path write(const std::string& name, const std::string& content) const {
    std::ofstream(path_ / name, std::ios::binary) << content;
    return path_ / name;
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// The message of the UserError with this code that `action` throws; a test failure otherwise.
template <class Action>
std::string error_of(ExitCode code, const Action& action) {
  try {
    action();
  } catch (const UserError& error) {
    EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(code)) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error was thrown";
  return "";
}

inline std::string read_text(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace trireme::test
