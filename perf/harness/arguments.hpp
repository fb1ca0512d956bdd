// The command line of a benchmark program. --help is served; a wrong one ends the program with exit code 64.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdlib>

namespace trireme::perf {

inline void parse_or_exit(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error) == 0 ? 0 : 64);
  }
}

}  // namespace trireme::perf
