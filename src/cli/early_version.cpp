// `trireme --version` before any library has begun: LibTorch registers its operators when it is
// loaded, which takes 0.2 s. Functions of .preinit_array run when everything is linked and nothing
// is initialised: no C++ library, no stdio.
#include <unistd.h>

#include <cstring>

#include "build_facts.hpp"
#include "trireme/base/error.hpp"

namespace {

// Of several processes that a launcher starts only one speaks; who that is, the parser finds out.
bool may_be_a_rank(char** environment) {
  for (; *environment != nullptr; ++environment) {
    const char* end = std::strchr(*environment, '=');
    for (const char* word : {"RANK", "PROCID"}) {
      const char* found = std::strstr(*environment, word);
      if (found != nullptr && end != nullptr && found < end) return true;
    }
  }
  return false;
}

void answer_version(int argc, char** argv, char** environment) {
  if (argc != 2 || std::strcmp(argv[1], "--version") != 0 || may_be_a_rank(environment)) return;
  constexpr size_t length = sizeof trireme::cli::version_text;
  char line[length];
  std::memcpy(line, trireme::cli::version_text, length);
  line[length - 1] = '\n';
  _exit(::write(STDOUT_FILENO, line, length) == static_cast<ssize_t>(length)
            ? 0
            : static_cast<int>(trireme::ExitCode::io_error));
}

[[gnu::section(".preinit_array"),
  gnu::used]] void (*const before_all_libraries)(int, char**, char**) = answer_version;

}  // namespace
