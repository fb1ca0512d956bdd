// Report of one iteration: a line of metrics.jsonl and of the console.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::report {

// "reward_<source>" is a source's part of the reward, "reward_<source>/<name>" a number that a
// plugin says beside it. Names of sources have no slash, those of other metrics neither.
inline constexpr const char* reward_prefix = "reward_";
bool is_reward_metric(std::string_view name);

// Means over the iteration, the same on every rank. NaN: not computed in this run (null in the
// file).
struct IterationMetrics {
  int64_t iteration = 0;
  int64_t version = 0;     // of the weights after the iteration
  double time = 0;         // seconds since 1970 when it ended
  int64_t iterations = 0;  // planned; 0: not known
  double epoch = 0;        // of the training data, how far they have been drawn; 0: not known
  // Ordered as written: reward, kl, policy_loss, ...
  std::vector<std::pair<std::string, double>> values;
  int64_t tokens = 0;                         // generated and prompt tokens of the rollout
  std::map<std::string, double> seconds;      // by phase, and total
  std::map<std::string, int64_t> memory;      // bytes by kind, the largest over ranks
  std::map<std::string, double> busy;         // by role: share of the time that its ranks worked
  std::map<std::string, double> weight_sync;  // the last one
  std::map<std::string, double> generation;   // work of the engines
  std::map<std::string, int64_t>
      threads;  // by role: planned, and NAME_worked, the fewest over ranks

  std::map<std::string, double>
      plugins;  // what reward plugins did: sums over ranks, wait_seconds the most
  std::map<std::string, double> judges;       // their work: sums over ranks, seconds the most
  std::map<std::string, double> environment;  // its work, and how episodes ended: sums
  // Of it: numbers of each tool.
  std::map<std::string, std::map<std::string, double>> tools;

  void set(const std::string& name, double value);
  double get(const std::string& name) const;  // NaN when absent
};

// One JSON object without a newline. Numbers are printed so that they read back to the same bits.
std::string to_json(const IterationMetrics& metrics);

// "iteration 12/40  reward 0.731  eval_reward 0.552  kl 0.0021 ...  1843 tok/s  5.1 s  2 min left",
// at most `columns` characters: numbers of less weight are left out where there is no room, and all
// are in metrics.jsonl. `seconds_left`: 0 where it is not known.
std::string to_console(const IterationMetrics& metrics, double seconds_left, int columns);

}  // namespace trireme::report
