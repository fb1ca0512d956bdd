// `trireme import`: a deck from the settings of another system, and what it could not carry over.
#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tools/foreign_file.hpp"
#include "tools/output.hpp"
#include "trireme/base/log.hpp"
#include "trireme/config/deck.hpp"
#include "trireme/config/foreign_names.hpp"
#include "trireme/config/key_table.hpp"
#include "trireme/tools/commands.hpp"

namespace trireme::tools {
namespace {

using config::Origin;

// Settings that another system has where nothing is said, and that differ from the deck's defaults.
// Of TRL those of GRPOConfig; a KL coefficient of verl counts where one of its two uses is on.
struct ForeignDefault {
  Origin origin;
  std::string_view name, value;
};
constexpr ForeignDefault foreign_defaults[] = {
    {Origin::trl, "beta", "0"},
    {Origin::trl, "num_generations", "8"},
    {Origin::trl, "max_completion_length", "256"},
    {Origin::trl, "loss_type", "dapo"},
    {Origin::trl, "scale_rewards", "group"},
    {Origin::trl, "lr_scheduler_type", "linear"},
    {Origin::trl, "warmup_ratio", "0"},
    {Origin::trl, "adam_beta1", "0.9"},
    {Origin::trl, "adam_beta2", "0.999"},
    {Origin::trl, "num_train_epochs", "3"},
    {Origin::verl, "actor_rollout_ref.actor.optim.weight_decay", "0.01"},
    {Origin::verl, "actor_rollout_ref.actor.optim.betas", "0.9 0.999"},
    {Origin::verl, "actor_rollout_ref.actor.optim.warmup_style", "constant"},
    {Origin::verl, "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio", "0"},
    {Origin::verl, "actor_rollout_ref.actor.clip_ratio_c", "3.0"},
    {Origin::verl, "actor_rollout_ref.actor.entropy_coeff", "0"},
    {Origin::verl, "critic.optim.lr", "1e-5"},
};

bool is_off(const std::string& value) {
  return value == "false" || value == "False" || value == "0" || value == "none" || value.empty();
}

bool is_plain_toml(const std::string& text) {
  if (text == "true" || text == "false") return true;
  if (text.empty() || text.front() == '.' || text.back() == '.') return false;
  size_t used = 0;
  try {
    static_cast<void>(std::stod(text, &used));
  } catch (const std::exception&) { return false; }
  return used == text.size() && text.find_first_of("xXnN") == std::string::npos;
}

std::string toml_text(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

std::string toml_of(const std::string& value) {
  if (value == "True" || value == "False") return value == "True" ? "true" : "false";
  return is_plain_toml(value) ? value : toml_text(value);
}

std::string toml_list(const std::vector<std::string>& values, bool texts) {
  std::string out = "[";
  for (const std::string& value : values)
    out += (out.size() > 1 ? ", " : "") + (texts ? toml_text(value) : toml_of(value));
  return out + "]";
}

class Import {
 public:
  Import(Origin origin, std::vector<ForeignSetting> settings) : origin_(origin) {
    for (ForeignSetting& setting : settings) {
      std::replace(setting.name.begin(), setting.name.end(), '-', '_');
      given_[setting.name] = std::move(setting);  // the last one counts, as everywhere
    }
    for (const ForeignDefault& line : foreign_defaults) {
      if (line.origin != origin || given_.contains(std::string(line.name))) continue;
      ForeignSetting setting{std::string(line.name), {std::string(line.value)}};
      if (const size_t blank = line.value.find(' '); blank != std::string_view::npos) {
        setting.values = {std::string(line.value.substr(0, blank)),
                          std::string(line.value.substr(blank + 1))};
        setting.is_list = true;
      }
      defaults_.insert(setting.name);
      given_[setting.name] = std::move(setting);
    }
    sums();
    kl();
    for (const auto& [name, setting] : given_) {
      if (!done_.contains(name)) carry(setting);
    }
    schedule();
  }

  std::string deck(const std::filesystem::path& source) const {
    std::string out = base::text("# From ", source.string(), " (", config::name_of(origin_),
                                 "), by `trireme import`. Check it with --dry-run.\n");
    if (!left_.empty()) out += "#\n# Not carried over, and needs your hand:\n";
    for (const std::string& line : left_) out += "#   " + line + "\n";
    std::map<std::string, std::string> sections;
    for (const auto& [key, value] : keys_) {
      const size_t dot = key.find('.');
      sections[key.substr(0, dot)] +=
          base::text(key.substr(dot + 1), " = ", value.text, value.comment.empty() ? "" : "  # ",
                     value.comment, "\n");
    }
    for (const auto& [section, lines] : sections) out += base::text("\n[", section, "]\n", lines);
    for (const std::string& block : sources_) out += "\n[[reward.source]]\n" + block;
    return out;
  }
  const std::vector<std::string>& left() const { return left_; }
  const std::vector<std::string>& needless() const { return needless_; }
  size_t carried() const { return keys_.size() + sources_.size(); }

 private:
  struct Line {
    std::string text, comment;
  };

  std::optional<std::string> value_of(const std::string& name) const {
    const auto found = given_.find(name);
    if (found == given_.end() || !found->second.unread.empty()) return std::nullopt;
    return found->second.values.front();
  }
  std::optional<double> number_of(const std::string& name) const {
    const auto text = value_of(name);
    if (!text || !is_plain_toml(*text)) return std::nullopt;
    return std::stod(*text);
  }
  bool on(const std::string& name) const {
    const auto value = value_of(name);
    return value && !is_off(*value);
  }
  void set(const std::string& key, std::string text, std::string comment = "") {
    keys_[key] = {std::move(text), std::move(comment)};
  }
  std::string comment_for(const std::string& name) const {
    return defaults_.contains(name) ? base::text(config::name_of(origin_), "'s default") : "";
  }

  // Keys that take two settings together.
  void sums() {
    const auto sum = [&](const char* prompt, const char* answer) {
      const auto a = number_of(prompt), b = number_of(answer);
      if (!a || !b) return;
      set("data.max_len", base::text(static_cast<int64_t>(*a + *b)),
          base::text(prompt, " + ", answer));
      done_.insert(prompt);
    };
    const auto pair = [&](const char* key, const char* first, const char* second, bool both) {
      const auto a = value_of(first), b = value_of(second);
      if (!b || (both && !a)) return;
      set(key, base::text("[", a.value_or("0.2"), ", ", *b, "]"),
          defaults_.contains(first) ? comment_for(first) : "");
      done_.insert({first, second});
    };
    sum("prompt_max_len", "generate_max_len");
    sum("max_prompt_length", "max_completion_length");
    sum("data.max_prompt_length", "data.max_response_length");
    pair("actor.adam.betas", "adam_beta1", "adam_beta2", true);
    pair("actor.eps_clip_low_high", "epsilon", "epsilon_high", false);
    pair("actor.eps_clip_low_high", "actor_rollout_ref.actor.clip_ratio_low",
         "actor_rollout_ref.actor.clip_ratio_high", true);
    const auto prompts = number_of("actor_rollout_ref.actor.ppo_mini_batch_size");
    if (prompts) {
      const double n = number_of("actor_rollout_ref.rollout.n").value_or(1);
      set("train.batch_size", base::text(static_cast<int64_t>(*prompts * n)),
          "ppo_mini_batch_size x rollout.n");
      done_.insert("actor_rollout_ref.actor.ppo_mini_batch_size");
    }
    const auto batch = number_of("generation_batch_size"), each = number_of("num_generations");
    if (batch && each && *each > 0) {
      set("rollout.batch_size", base::text(static_cast<int64_t>(*batch / *each)),
          "generation_batch_size / num_generations");
      done_.insert("generation_batch_size");
    }
  }

  // Where a KL counts, and with what coefficient.
  void kl() {
    if (origin_ == Origin::trl) {
      if (on("beta")) {
        set("algo.kl.use_loss", "true", "beta");
        set("algo.kl.estimator", "\"k3\"", "beta");
      }
      return;
    }
    if (origin_ != Origin::verl) return;
    const std::string loss = "actor_rollout_ref.actor.use_kl_loss",
                      reward = "algorithm.use_kl_in_reward";
    done_.insert({loss, reward});
    const std::string of_loss[] = {"actor_rollout_ref.actor.kl_loss_coef",
                                   "actor_rollout_ref.actor.kl_loss_type"};
    const std::string of_reward[] = {"algorithm.kl_ctrl.kl_coef", "algorithm.kl_penalty"};
    if (on(loss)) {
      set("algo.kl.use_loss", "true");
      done_.insert(std::begin(of_reward), std::end(of_reward));
      if (!given_.contains(of_loss[0])) set("algo.kl.init_coef", "0.001", "verl's default");
      if (!given_.contains(of_loss[1])) set("algo.kl.estimator", "\"k3\"", "verl's default");
      if (on(reward))
        left_.push_back(base::text(reward, ": a KL in the loss and in the reward: ", "keep one"));
    } else {
      done_.insert(std::begin(of_loss), std::end(of_loss));
      if (on(reward)) {
        if (!given_.contains(of_reward[0])) set("algo.kl.init_coef", "0.001", "verl's default");
      } else {
        done_.insert(std::begin(of_reward), std::end(of_reward));
        set("algo.kl.init_coef", "0", "no KL is in use");
      }
    }
  }

  // A cosine to 0.
  void schedule() {
    const auto found = keys_.find("actor.lr_scheduler");
    if (found != keys_.end() && found->second.text == "\"cosine_with_min_lr\"" &&
        !keys_.contains("actor.min_lr_ratio") && origin_ != Origin::openrlhf)
      set("actor.min_lr_ratio", "0", "their cosine ends at 0");
  }

  void leave(const ForeignSetting& setting, std::string_view why) {
    if (defaults_.contains(setting.name)) return;
    auto& list = why.starts_with("nothing: ") ? needless_ : left_;
    list.push_back(
        base::text(setting.name, ": ", why.starts_with("nothing: ") ? why.substr(9) : why));
  }

  void carry(const ForeignSetting& setting) {
    const config::ForeignName* entry = config::foreign_name(origin_, setting.name);
    const bool own = entry == nullptr && origin_ == Origin::openrlhf && is_key(setting.name);
    if (entry == nullptr && !own) return leave(setting, "no setting of this name is known");
    if (!own && entry->key.empty()) return leave(setting, entry->note);
    if (!setting.unread.empty())
      return leave(setting, base::text(setting.unread, ": set ", own ? setting.name : entry->key));
    const std::string key(own ? setting.name : std::string(entry->key));
    if (!own && !entry->value.empty()) {
      if (is_off(setting.values.front())) return;
      return place(setting, key, with_value(entry->value, setting.values.front()));
    }
    std::vector<std::string> values = setting.values;
    if (!setting.is_list && key.ends_with("dataset")) values = split(values.front());
    for (std::string& value : values) value = config::word_here(origin_, key, value);
    if (setting.is_list || key.ends_with("dataset"))
      return place(setting, key, toml_list(values, key.ends_with("dataset")));
    place(setting, key, toml_of(values.front()));
  }

  static bool is_key(std::string_view name) {
    const auto& infos = config::key_infos();
    return std::ranges::any_of(infos, [&](const auto& info) { return info.name == name; });
  }
  static std::string with_value(std::string_view pattern, const std::string& value) {
    std::string out(pattern);
    if (const size_t at = out.find('$'); at != std::string::npos) out.replace(at, 1, value);
    return out;
  }
  static std::vector<std::string> split(const std::string& text) {
    std::vector<std::string> out(1);
    for (const char c : text) {
      if (c == ',') {
        out.emplace_back();
      } else {
        out.back() += c;
      }
    }
    return out;
  }

  // Values are checked one by one, as a deck's.
  void place(const ForeignSetting& setting, const std::string& key, const std::string& text) {
    constexpr std::string_view source = "reward.source.";
    if (key.starts_with(source)) {
      const bool model = key.ends_with(".path");
      sources_.push_back(base::text("kind = \"", model ? "model" : "plugin", "\"\n",
                                    key.substr(source.size()), " = ", text, "\n"));
      return;
    }
    try {
      static_cast<void>(config::parse_deck("", "deck", std::vector{key + "=" + text}));
    } catch (const UserError& error) {
      std::string problem = error.what();
      if (const size_t at = problem.find(key); at != std::string::npos)
        problem = problem.substr(at);
      return leave(setting, problem);
    }
    if (!keys_.contains(key)) set(key, text, comment_for(setting.name));
  }

  Origin origin_;
  std::map<std::string, ForeignSetting> given_;
  std::set<std::string> defaults_, done_;
  std::map<std::string, Line> keys_;
  std::vector<std::string> sources_, left_, needless_;
};

}  // namespace

ExitCode run_import(const ImportCommand& command) {
  if (command.names) {
    std::fputs(config::foreign_table_markdown(command.origin).c_str(), stdout);
    return ExitCode::done;
  }
  VALIDATE(!command.input.empty(), ExitCode::usage, "trireme import ",
           config::to_string(command.origin), " without a file: name one");
  const bool to_screen = command.output.empty();
  if (!to_screen) check_output_file(command.output, {command.input}, existing(command.force));
  const Import import(command.origin, read_foreign_file(command.input));
  const std::string deck = import.deck(command.input);
  if (to_screen) {
    std::fputs(deck.c_str(), stdout);
    return ExitCode::done;
  }
  base::write_file_atomically(command.output, deck);
  log::info(base::text(command.output.string(), ": ", import.carried(), " keys, ",
                       import.left().size(), " settings need your hand, ", import.needless().size(),
                       " have no counterpart and need none"));
  for (const std::string& line : import.left()) log::warning("not carried over: " + line);
  for (const std::string& line : import.needless()) log::info("not needed: " + line);
  return ExitCode::done;
}

}  // namespace trireme::tools
