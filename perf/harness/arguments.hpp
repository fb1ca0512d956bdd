// What a benchmark program is given from outside: its command line and TRIREME_ISA. --help is
// served; what is wrong ends the program with the exit code that the program trireme would have.
// Before the first tensor.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>

#include "trireme/base/error.hpp"
#include "trireme/base/isa.hpp"

namespace trireme::perf {

inline void parse_or_exit(CLI::App& app, int argc, char** argv) {
  try {
    base::cap_libraries();
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error) == 0 ? 0 : 64);
  } catch (const UserError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    std::exit(static_cast<int>(error.code()));
  }
}

}  // namespace trireme::perf
