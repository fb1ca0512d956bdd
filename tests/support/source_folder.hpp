// Where the sources lie: ctest says so; __FILE__ may be relative to a build folder (a compiler
// cache that serves several checkouts).
#pragma once

#include <cstdlib>
#include <filesystem>

namespace trireme::test {

inline std::filesystem::path source_folder() {
  const char* told = std::getenv("TRIREME_SOURCE_DIR");
  return told != nullptr ? std::filesystem::path(told)
                         : std::filesystem::path(__FILE__).parent_path() / "../..";
}

}  // namespace trireme::test
