#include "trireme/base/log.hpp"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <mutex>
#include <vector>

#include "trireme/base/error.hpp"
#include "trireme/base/progress.hpp"

namespace trireme::log {
namespace {

struct State {
  std::mutex mutex;
  std::shared_ptr<spdlog::logger> console;
  std::shared_ptr<spdlog::logger> files;
  bool live_line = false;
  bool opened = false;
};

State& state() {
  static State instance;
  return instance;
}

spdlog::level::level_enum to_spdlog(Level level) {
  switch (level) {
    case Level::debug: return spdlog::level::debug;
    case Level::info: return spdlog::level::info;
    case Level::warning: return spdlog::level::warn;
    case Level::error: return spdlog::level::err;
  }
  return spdlog::level::info;
}

std::shared_ptr<spdlog::logger> make_console(Level level) {
  auto logger = std::make_shared<spdlog::logger>("console",
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern(level == Level::debug ? "[%H:%M:%S.%e] %v" : "%v");
  logger->set_level(to_spdlog(level));
  return logger;
}

spdlog::sink_ptr make_file(const std::filesystem::path& path) {
  try {
    return std::make_shared<spdlog::sinks::basic_file_sink_mt>(path.string());
  } catch (const spdlog::spdlog_ex& error) {
    throw UserError(ExitCode::io_error,
                    base::text("cannot write the log file ", path.string(), " (", error.what(),
                               "): choose another run.dir"));
  }
}

void erase_live_line(State& s) {
  if (!s.live_line) return;
  std::fputs("\r\033[K", stderr);
  s.live_line = false;
}

const char* prefix(Level level) {
  if (level == Level::warning) return "warning: ";
  if (level == Level::error) return "error: ";
  return "";
}

}  // namespace

void open(const Sinks& sinks) {
  const base::FileWork work{"write", "the log"};
  auto& s = state();
  const std::lock_guard lock(s.mutex);
  s.opened = true;
  s.console = sinks.console ? make_console(sinks.level) : nullptr;
  std::vector<spdlog::sink_ptr> files;
  for (const auto& path : {sinks.main_file, sinks.rank_file}) {
    if (!path.empty()) files.push_back(make_file(path));
  }
  s.files.reset();
  if (!files.empty()) {
    s.files = std::make_shared<spdlog::logger>("files", files.begin(), files.end());
    s.files->set_pattern("[%Y-%m-%d %H:%M:%S.%e] %v");
    s.files->set_level(to_spdlog(sinks.level));
    s.files->flush_on(spdlog::level::info);
  }
}

void close() {
  const base::FileWork work{"write", "the log"};
  auto& s = state();
  const std::lock_guard lock(s.mutex);
  erase_live_line(s);
  if (s.files) s.files->flush();
  s.files.reset();
  s.opened = false;
  s.console = make_console(Level::info);
}

void write(Level level, const std::string& message) {
  const base::FileWork work{"write",
                            "the log"};  // its lock too may be held by a write that does not return
  auto& s = state();
  const std::lock_guard lock(s.mutex);
  const bool has_place = s.console || s.files;
  // A rank that another one speaks for, without files: its own errors are said.
  if (!has_place && (!s.opened || level == Level::error)) s.console = make_console(Level::info);
  erase_live_line(s);
  const std::string line = prefix(level) + message;
  if (s.console) s.console->log(to_spdlog(level), "{}", line);
  if (s.files) s.files->log(to_spdlog(level), "{}", line);
}

void detail(const std::string& message) {
  const base::FileWork work{"write", "the log"};
  auto& s = state();
  const std::lock_guard lock(s.mutex);
  erase_live_line(s);
  if (s.console) s.console->debug("{}", message);
  if (s.files) s.files->info("{}", message);
}

void only_files(Level level, const std::string& message) {
  const base::FileWork work{"write", "the log"};
  auto& s = state();
  const std::lock_guard lock(s.mutex);
  if (s.files) s.files->log(to_spdlog(level), "{}", prefix(level) + message);
}

void live(const std::string& line) {
  static const bool terminal = isatty(STDERR_FILENO) == 1;
  auto& s = state();
  const std::lock_guard lock(s.mutex);
  if (!terminal || !s.console) return;
  std::fprintf(stderr, "\r\033[K%s", line.c_str());
  std::fflush(stderr);
  s.live_line = true;
}

}  // namespace trireme::log
