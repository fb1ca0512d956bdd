// status.json: the starts of a run and how each of them ended, for people and scripts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace trireme::report {

struct RunStart {
  double time = 0;    // seconds since 1970
  int64_t after = 0;  // iterations that were done before: 0, or those of the checkpoint
  int64_t ranks = 0;
  int64_t nodes = 0;
  std::string version = {};
  std::string folder = {};  // the working folder: relative paths of the deck start there
  // How it ended; `ended` 0: it has not, or nobody could say (killed, crashed).
  double ended = 0;
  int64_t exit_code = 0;
  std::string how = {};  // "done", "stopped", "error"
};

struct RunRecord {
  std::string command = {};  // ppo, sft, rm or dpo
  std::string name = {};
  std::string model = {};  // model.path
  int64_t iterations = 0;  // planned
  std::vector<RunStart> starts = {};
};

// Empty where there is no status.json or it cannot be read. Local.
RunRecord read_run_record(const std::filesystem::path& run);
// Local; throws UserError as base::write_file_atomically.
void write_run_record(const std::filesystem::path& run, const RunRecord& record);

// Now, in seconds since 1970.
double wall_clock();
// "2026-11-27 06:12:03", local time.
std::string clock_text(double seconds_since_1970);

}  // namespace trireme::report
