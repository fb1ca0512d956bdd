// The requests that a reward plugin was sent, and its answers to them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "trireme/plugin/answers.hpp"
#include "trireme/reward/reward.hpp"

namespace trireme::reward {

// A line asks for one answer to a prompt, or, with `whole_groups`, for all that a rank has of them.
class Asked {
 public:
  struct Entry {
    std::string line;                                        // the request, until it is settled
    std::string where;                                       // described()
    std::vector<uint64_t> members = {};                      // the requests that it asks for
    std::vector<float> rewards = {};                         // of each; empty: not answered
    std::vector<std::map<std::string, float>> metrics = {};  // of each
    int64_t failures = 0;                                    // of those that were asked
    bool given_up = false;
    size_t taken = 0;  // members
    bool settled() const { return !rewards.empty() || given_up; }
  };

  explicit Asked(const std::string& source, bool whole_groups = false)
      : who_("reward plugin " + source),
        whole_groups_(whole_groups),
        metrics_("reward plugin " + source) {}

  // The number of the line that asks for a request.
  uint64_t line_of(uint64_t request) const;
  bool has(const Request& request) const;
  // It is answered or given up.
  bool settled(const Request& request) const { return entries_.at(line_of(request.id)).settled(); }
  // Of the plugin's answers: the member that has rewards.
  const char* answer_mark() const { return whole_groups_ ? "\"rewards\"" : "\"reward\""; }

  // Their line for the plugin; one request, but for whole groups.
  const std::string& add(std::span<const Request> requests);
  const std::string& line(uint64_t id) const { return entries_.at(id).line; }
  // The process that was asked has failed: how often that was so by now.
  int64_t count_failure(uint64_t id) { return ++entries_.at(id).failures; }
  // The request in words, for messages.
  std::string where(uint64_t id) const;
  void give_up(uint64_t id);
  // What became of these requests, which are all settled; they are forgotten.
  Scores take(std::span<const Request> requests);
  // The id that the line answers; nullopt when it is no answer but something the plugin printed.
  // Throws UserError(bad_data) for answers that make no sense.
  std::optional<uint64_t> accept(std::string_view line);

 private:
  using Entries = std::map<uint64_t, Entry>;
  Entries::iterator entry_of(const nlohmann::json& json, std::string_view line);
  float checked_reward(const nlohmann::json& reward, const Entry& entry,
                       std::string_view line) const;
  void read_one(const nlohmann::json& answer, Entry& entry, std::string_view line);
  void read_group(const nlohmann::json& answer, Entry& entry, std::string_view line);

  std::string who_;  // for messages
  bool whole_groups_ = false;
  Entries entries_;
  plugin::MetricReader metrics_;
};

}  // namespace trireme::reward
