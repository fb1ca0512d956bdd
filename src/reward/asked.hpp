// The requests that a reward plugin was sent, and its answers to them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "trireme/reward/reward.hpp"

namespace trireme::reward {

// The start of a line, for messages.
std::string excerpt(std::string_view line);

class Asked {
 public:
  struct Entry {
    std::string line;  // the request, until it is answered
    std::optional<float> reward;
    std::map<std::string, float> metrics;
  };

  explicit Asked(std::string source) : source_(std::move(source)) {}

  bool empty() const { return entries_.empty(); }
  bool has(const Request& request) const { return entries_.contains(request.id); }
  bool answered(const Request& request) const { return entries_.at(request.id).reward.has_value(); }
  size_t answered() const { return answered_; }
  size_t size() const { return entries_.size(); }
  bool complete() const { return answered_ == entries_.size(); }

  // Its line for the plugin.
  const std::string& add(const Request& request);
  // The lines of what is not answered, for a new child.
  std::string missing() const;
  // The answers to these requests, which are all there; they are forgotten.
  Scores take(std::span<const Request> requests);
  // False when the line is no answer but something the plugin printed. Throws UserError(bad_data) for answers that make no sense.
  bool accept(std::string_view line);

 private:
  Entry& entry_of(const nlohmann::json& json, std::string_view line);
  float reward_of(const nlohmann::json& json, std::string_view line) const;
  void add_metrics(const nlohmann::json& metrics, Entry& entry, std::string_view line) const;

  std::string source_;
  std::map<uint64_t, Entry> entries_;
  size_t answered_ = 0;
};

}  // namespace trireme::reward
