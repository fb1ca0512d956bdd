// A line of metrics.jsonl as flat numbers, for everything that shows a run, and reading of files
// that grow by lines.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::report {

struct MetricLine {
  int64_t iteration = 0;
  double time = 0;  // seconds since 1970 when the iteration ended; 0: an older version did not say
  // "reward", "seconds.train", in the order of the file; values that are null are left out.
  std::vector<std::pair<std::string, double>> values;

  double get(std::string_view name) const;  // NaN when absent
};

// nullopt: not a whole line of an iteration.
std::optional<MetricLine> parse_metric_line(std::string_view line);

// Reads a file that is appended to by whole lines, each line once.
class LineFollower {
 public:
  explicit LineFollower(std::filesystem::path path) : path_(std::move(path)) {}
  // Calls `take` for each whole line since the last call; a file that is missing has none. Local.
  // Throws UserError when the file cannot be read.
  void read(const std::function<void(std::string_view line)>& take);

 private:
  std::filesystem::path path_;
  uint64_t offset_ = 0;  // of the first line not taken yet
};

}  // namespace trireme::report
