// Runs before any library is initialised. Answers `trireme --version`, since LibTorch takes 0.2 s
// to register its operators, and leaves a working folder that was removed, since oneMKL ends the
// process there when it is loaded. Functions of .preinit_array run when everything is linked and
// nothing is initialised: no C++ library, no stdio.
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "build_facts.hpp"
#include "cli/arguments.hpp"
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

// The parser says it, as it says other errors.
void leave_lost_folder() {
  static char path[4096];
  errno = 0;
  const bool there = ::getcwd(path, sizeof path) != nullptr && path[0] == '/';
  if (there || errno == ERANGE) return;
  trireme::cli::lost_working_folder = errno != 0 ? errno : ENOENT;
  if (::chdir("/") != 0) return;
}

void begin(int argc, char** argv, char** environment) {
  answer_version(argc, argv, environment);
  leave_lost_folder();
}

[[gnu::section(".preinit_array"), gnu::used]] void (*const before_all_libraries)(int, char**,
                                                                                 char**) = begin;

}  // namespace
