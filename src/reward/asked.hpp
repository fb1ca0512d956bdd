// The requests that a reward plugin was sent, and its answers to them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "trireme/plugin/answers.hpp"
#include "trireme/reward/reward.hpp"

namespace trireme::reward {

class Asked {
 public:
  struct Entry {
    std::string line;   // the request, until it is settled
    std::string where;  // described()
    std::optional<float> reward;
    std::map<std::string, float> metrics;
    int64_t failures = 0;  // of those that were asked
    bool given_up = false;
    bool settled() const { return reward || given_up; }
  };

  explicit Asked(const std::string& source)
      : who_("reward plugin " + source), metrics_("reward plugin " + source) {}

  bool has(const Request& request) const { return entries_.contains(request.id); }
  // It is answered or given up.
  bool settled(const Request& request) const { return entries_.at(request.id).settled(); }

  // Its line for the plugin.
  const std::string& add(const Request& request);
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
  float reward_of(const nlohmann::json& json, const Entry& entry, std::string_view line) const;

  std::string who_;  // for messages
  Entries entries_;
  plugin::MetricReader metrics_;
};

}  // namespace trireme::reward
