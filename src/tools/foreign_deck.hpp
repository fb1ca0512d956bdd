// A deck from the settings of another system.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tools/foreign_file.hpp"
#include "trireme/config/foreign_names.hpp"

namespace trireme::tools {

class ForeignDeck {
 public:
  // `trainer`: asked for; none: what the file says, or looks like.
  ForeignDeck(config::Origin origin, ForeignFile file, std::optional<config::Trainer> trainer);

  std::string text(const std::filesystem::path& source) const;
  config::Trainer trainer() const { return trainer_; }
  // Settings that it could not carry over, and ones that need no counterpart.
  const std::vector<std::string>& left() const { return left_; }
  const std::vector<std::string>& needless() const { return needless_; }
  size_t carried() const { return keys_.size() + sources_.size(); }

 private:
  struct Line {
    std::string text, comment;
  };

  config::Trainer looks_like() const;
  void add_defaults();
  void carry(const ForeignSetting& setting);
  void place(const ForeignSetting& setting, const std::string& key, const std::string& text);
  void leave(const ForeignSetting& setting, std::string_view why);
  void leave(const std::string& name, std::string_view why) {
    leave(ForeignSetting{name, {}}, why);
  }
  void set(const std::string& key, std::string text, std::string comment = "");

  std::optional<std::string> value_of(const std::string& name) const;
  std::optional<double> number_of(const std::string& name) const;
  bool given(const std::string& name) const;  // not by a default
  bool on(const std::string& name) const;
  std::string comment_for(const std::string& name) const;
  // Settings that a rule has taken.
  void done(std::string_view name) { done_.emplace(name); }

  // Rules for several settings together (foreign_rules.cpp).
  void follow_rules();
  void sum(const char* key, const char* prompt, const char* answer, double otherwise);
  void pair(const char* key, const char* first, const char* second, const char* otherwise);
  void openrlhf_rules();
  void trl_rules();
  void trl_policy_loss();
  void trl_steps();
  void trl_warmup();
  void trl_adapter();
  void verl_rules();
  void verl_kl();
  void verl_critic();
  void verl_warmup(const std::string& optimizer, const char* key);
  void reward_model_is_off(const std::string& prefix);
  void copy_to_critic();
  void end_schedule();
  void drop_halves();

  config::Origin origin_;
  config::Trainer trainer_ = config::Trainer::ppo;
  std::map<std::string, ForeignSetting> given_;
  std::set<std::string> defaults_, done_;
  std::map<std::string, Line> keys_;
  std::vector<std::string> sources_, left_, needless_;
};

// As TOML takes it: "5." and ".5" are numbers there, too.
std::string toml_number(const std::string& text);  // "": not a number
bool is_off(std::string_view value);

}  // namespace trireme::tools
