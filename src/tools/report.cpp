#include <unistd.h>

#include <cstdio>
#include <deque>
#include <system_error>
#include <vector>

#include "tools/output.hpp"
#include "tools/run_view.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/terminal.hpp"
#include "trireme/checkpoint/run_lock.hpp"
#include "trireme/report/run_page.hpp"
#include "trireme/tools/commands.hpp"

namespace trireme::tools {

namespace fs = std::filesystem;

bool is_run(const fs::path& folder) {
  std::error_code error;
  return fs::exists(folder / "metrics.jsonl", error) || fs::exists(folder / "status.json", error) ||
         (fs::exists(folder / "deck.toml", error) && fs::is_directory(folder / "logs", error));
}

report::RunState state_of_run(const report::RunHistory& run) {
  const auto lock = checkpoint::look_at_lock(run.folder());
  report::RunState state = report::state_of(run, lock && lock->alive);
  if (lock && lock->alive)
    state.words += base::text(" (", lock->holder.job.empty() ? "" : lock->holder.job + ", ",
                              lock->holder.host, ", pid ", lock->holder.pid, ", heartbeat ",
                              base::human_seconds(lock->silence), " ago)");
  return state;
}

void print_status(const fs::path& folder) {
  report::RunHistory run(folder);
  run.update();
  const report::ShownRun shown{&run, state_of_run(run)};
  std::fputs(report::status_text(shown, base::terminal_columns(STDOUT_FILENO)).c_str(), stdout);
}

namespace {

// An older page is written anew; nothing else is written over.
void check_page(const fs::path& output) {
  std::error_code error;
  if (is_stream(output) || !fs::exists(output, error)) return;
  const bool page = fs::is_regular_file(output, error) &&
                    base::read_file(output).find(report::page_mark) != std::string::npos;
  VALIDATE(page, ExitCode::usage, output.string(),
           " is there already, and is not a page of `trireme report`: name another output, or "
           "remove it");
}

}  // namespace

ExitCode run_report(const ReportCommand& command) {
  std::deque<report::RunHistory> histories;  // which stay where they are
  std::vector<report::ShownRun> shown;
  for (const fs::path& folder : command.runs) {
    VALIDATE(fs::exists(folder), ExitCode::input_missing, folder.string(),
             " does not exist: check the path");
    VALIDATE(is_run(folder), ExitCode::usage, folder.string(),
             " is not a run folder (it has neither metrics.jsonl nor status.json): name the "
             "folder that the deck has as run.dir");
    report::RunHistory& run = histories.emplace_back(folder);
    run.update();
    shown.push_back({&run, state_of_run(run)});
  }
  fs::path output = command.output;
  if (output.empty())
    output = shown.size() == 1 ? command.runs.front() / report::page_name : report::page_name;
  check_page(output);
  write_output(output, report::page_of(shown, output));
  if (is_stream(output)) return ExitCode::done;
  std::fputs(base::text("wrote ", output.string(), "\n").c_str(), stdout);
  return ExitCode::done;
}

}  // namespace trireme::tools
