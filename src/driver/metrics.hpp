// What one iteration is reported with: metrics.jsonl, the line on the console, the end table and the text plot.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "trireme/base/files.hpp"

namespace trireme::driver {

// Means over the iteration, the same on every rank. NaN: not computed in this run (null in the file).
struct IterationMetrics {
  int64_t iteration = 0;
  int64_t version = 0;  // of the weights after the iteration
  // Ordered as written: reward, kl, policy_loss, ...
  std::vector<std::pair<std::string, double>> values;
  int64_t tokens = 0;   // generated and prompt tokens of the rollout
  std::map<std::string, double> seconds;  // by phase, and total
  std::map<std::string, int64_t> memory;  // bytes by kind, the largest over ranks
  std::map<std::string, int64_t> threads;  // by role: planned, and NAME_worked, the fewest over ranks

  void set(const std::string& name, double value);
  double get(const std::string& name) const;  // NaN when absent
};

// One JSON object without a newline. Numbers are printed so that they read back to the same bits.
std::string to_json(const IterationMetrics& metrics);

// "iter 12/40  reward 0.731  kl 0.0021  loss -0.013  clip 0.04  len 18.2  1843 tok/s  | rollout 3.1 s ..."
std::string to_console(const IterationMetrics& metrics, int64_t iterations);

// A plot of `values` with axes, at most `width` x `height` characters, for terminals.
std::string text_plot(const std::vector<double>& values, const std::string& title, int width = 60, int height = 10);

// metrics.jsonl of a run: appended line by line, each line flushed; on resume cut back to what the checkpoint knew.
class MetricsFile {
 public:
  // Opens for appending after byte `cursor` (what lies behind it was written after the checkpoint and is removed).
  MetricsFile(const std::filesystem::path& path, int64_t cursor);
  // Throws when it cannot be written; the line is kept (up to 16 MiB of them) and goes out with a later one.
  void append(const std::string& line);
  // On the device, for a checkpoint that remembers the cursor.
  void sync();
  int64_t cursor() const { return cursor_; }

 private:
  std::filesystem::path path_;
  base::FileDescriptor file_;
  int64_t cursor_ = 0;
  std::string waiting_;  // lines that could not be written yet
};

}  // namespace trireme::driver
