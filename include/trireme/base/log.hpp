// The program's log: stderr or stdout for people, `log.txt` of the run folder for rank 0,
// `logs/rank-NNNNN.log` for every rank. Calls are thread-safe. Before open() everything goes to
// stderr of the calling process.
#pragma once

#include <filesystem>
#include <string>

#include "trireme/base/log_level.hpp"

namespace trireme::log {

// Where this rank writes. `console` is true on the one rank that talks to the terminal.
struct Sinks {
  bool console = true;
  std::filesystem::path main_file;  // empty: none
  std::filesystem::path rank_file;  // empty: none
  Level level = Level::info;
};

// Replaces the sinks. Not collective.
void open(const Sinks& sinks);

// Flushes and closes the files; later messages go to stderr.
void close();

void write(Level level, const std::string& message);
inline void debug(const std::string& message) { write(Level::debug, message); }
inline void info(const std::string& message) { write(Level::info, message); }
inline void warning(const std::string& message) { write(Level::warning, message); }
inline void error(const std::string& message) { write(Level::error, message); }

// Details for log.txt that a person who starts a run need not read; on the console only at level
// debug.
void detail(const std::string& message);

// The same, but not to the console, where it stands already.
void only_files(Level level, const std::string& message);

// A progress line on a terminal: overwritten by the next one, erased before a message; nothing when
// the console is no terminal or this rank has none.
void live(const std::string& line);

}  // namespace trireme::log
