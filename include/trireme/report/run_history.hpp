// A run as its folder tells it: metrics, samples, starts, warnings. Reads only what is new when it
// is asked again, so that a run can show itself at every checkpoint.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "trireme/report/metric_line.hpp"
#include "trireme/report/run_record.hpp"
#include "trireme/report/series.hpp"
#include "trireme/report/shown_samples.hpp"

namespace trireme::report {

// A warning or an error of log.txt.
struct Problem {
  std::string time = {};  // of the last time
  bool error = false;
  std::string text = {};
  int64_t times = 1;
};

// A role's share of the wall time, from summary.json.
struct RoleTimes {
  std::string role = {};
  int64_t ranks = 0;
  double seconds = 0, communication = 0, wait = 0, io = 0;
  double host_peak = 0, device_peak = 0;  // bytes
};

class RunHistory {
 public:
  // Of the run in this folder; reads nothing yet. Throws nothing.
  explicit RunHistory(std::filesystem::path folder);

  // Reads what was written since the last call. Local. Throws UserError where a file is there and
  // cannot be read.
  void update();

  const std::filesystem::path& folder() const { return folder_; }
  std::string name() const;  // the run's name, else that of its folder
  const RunRecord& record() const { return record_; }
  // Empty series where there is none of this name. "seconds.train" and so on; "tokens_per_second"
  // is tokens over seconds.total.
  const Series& series(const std::string& name) const;
  const std::vector<std::string>& names() const { return names_; }  // as the file has them
  // Of these the sources of the reward and what they say beside it: "reward_judge/format".
  std::vector<std::string> reward_parts() const;
  const MetricLine& last() const { return last_; }  // iteration 0: none yet
  int64_t iterations() const;                       // planned, 0: not known
  double seconds_per_iteration() const;             // of the newest ones; 0: not known
  const ShownSamples& samples() const { return samples_; }
  const std::vector<Problem>& problems() const { return problems_; }
  const std::vector<RoleTimes>& roles() const { return roles_; }
  // Keys of the deck that differ from the defaults: key and value, as the deck writes them.
  const std::vector<std::pair<std::string, std::string>>& deck() const { return deck_; }
  // The newest checkpoint's number, -1: none; and the folder of checkpoints.
  int64_t newest_checkpoint() const { return newest_checkpoint_; }
  std::filesystem::path checkpoints() const;

 private:
  void take(const MetricLine& line);
  void take_log(std::string_view line);
  void read_summary();
  void look_for_checkpoints();

  std::filesystem::path folder_;
  LineFollower metrics_, sample_lines_, log_;
  std::map<std::string, Series> series_;
  std::vector<std::string> names_;
  MetricLine last_;
  std::vector<double> newest_seconds_;
  ShownSamples samples_;
  std::vector<Problem> problems_;
  std::vector<RoleTimes> roles_;
  std::vector<std::pair<std::string, std::string>> deck_;
  RunRecord record_;
  int64_t newest_checkpoint_ = -1;
};

// Lines `key = value` of a complete deck that another one lacks, with their sections in front.
std::vector<std::pair<std::string, std::string>> deck_differences(const std::string& deck,
                                                                  const std::string& defaults);

// How a run stands.
enum class Standing { running, done, stopped, failed, ended, unknown };
struct RunState {
  Standing standing = Standing::unknown;
  std::string words;  // "running", "done (exit code 0)", "ended without a word: killed or crashed"
};
// `alive`: whether a process of the run is known to live.
RunState state_of(const RunHistory& run, bool alive);

}  // namespace trireme::report
