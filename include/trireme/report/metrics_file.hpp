// metrics.jsonl, and a plot of its numbers in the terminal.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "trireme/base/files.hpp"

namespace trireme::report {

// The iterations of a plot's first and last value; 0: their number.
struct PlotSpan {
  int64_t first = 1, last = 0;
};
// A plot of `values` with axes, at most `width` x `height` characters, for terminals.
std::string text_plot(const std::vector<double>& values, const std::string& title, int width = 60,
                      int height = 10, PlotSpan span = {});

// The means of reward metrics in a metrics.jsonl, by name in the order of their first iteration.
// Local. Throws as base::FileWork says.
std::vector<std::pair<std::string, std::vector<double>>> reward_metric_curves(
    const std::filesystem::path& path);

// metrics.jsonl of a run: appended line by line, each line flushed; on resume cut back to what the
// checkpoint knew.
class MetricsFile {
 public:
  // Opens for appending after byte `cursor` (what lies behind it was written after the checkpoint
  // and is removed). A file that is shorter is a warning, and goes on behind its last whole line;
  // an empty one, as in a new folder, is no more than said.
  MetricsFile(const std::filesystem::path& path, int64_t cursor);
  // Throws when it cannot be written; the line is kept (up to 16 MiB of them) and goes out with a
  // later one.
  void append(const std::string& line);
  // Writes lines that still wait, and puts what is written on the device: for a checkpoint that
  // remembers the cursor. Throws when some still wait.
  void sync();
  int64_t cursor() const { return cursor_; }

 private:
  void write_waiting();
  void to_device();

  std::filesystem::path path_;
  base::FileDescriptor file_;
  int64_t cursor_ = 0;
  std::string waiting_;  // lines that could not be written yet
};

}  // namespace trireme::report
