// Where ./bootstrap.sh model puts published models. Cases named PublishedModel need one: they run
// under the label interop.
#pragma once

#include <cstdlib>
#include <filesystem>

namespace trireme::test {

inline std::filesystem::path published_models() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const auto root = cache && *cache ? std::filesystem::path(cache)
                                    : std::filesystem::path(home ? home : "") / ".cache";
  return root / "trireme/models";
}

}  // namespace trireme::test
