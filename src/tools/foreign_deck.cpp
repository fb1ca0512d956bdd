#include "tools/foreign_deck.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <utility>

#include "trireme/base/error.hpp"
#include "trireme/base/text.hpp"
#include "trireme/config/deck.hpp"
#include "trireme/config/key_table.hpp"

namespace trireme::tools {

using config::Origin;
using config::Trainer;

namespace {

// Settings that another system has where nothing is said, and that differ from the deck's defaults.
// Of verl a KL coefficient counts where one of its two uses is on.
struct ForeignDefault {
  Origin origin;
  std::string_view trainers;  // letters of ppo, sft, rm, dpo
  std::string_view name, value;
};
constexpr ForeignDefault foreign_defaults[] = {
    {Origin::openrlhf, "s", "learning_rate", "5e-6"},
    {Origin::openrlhf, "s", "max_epochs", "2"},
    {Origin::openrlhf, "d", "learning_rate", "1e-5"},
    {Origin::openrlhf, "r", "learning_rate", "9e-6"},
    {Origin::openrlhf, "dr", "max_len", "512"},
    {Origin::trl, "p", "beta", "0"},
    {Origin::trl, "p", "num_generations", "8"},
    {Origin::trl, "p", "max_completion_length", "256"},
    {Origin::trl, "p", "loss_type", "dapo"},
    {Origin::trl, "p", "scale_rewards", "group"},
    {Origin::trl, "psdr", "lr_scheduler_type", "linear"},
    {Origin::trl, "psdr", "warmup_ratio", "0"},
    {Origin::trl, "psdr", "adam_beta1", "0.9"},
    {Origin::trl, "psdr", "adam_beta2", "0.999"},
    {Origin::trl, "psdr", "num_train_epochs", "3"},
    {Origin::trl, "s", "learning_rate", "2e-5"},
    {Origin::trl, "r", "learning_rate", "1e-4"},
    {Origin::trl, "sdr", "max_length", "1024"},
    {Origin::verl, "p", "actor_rollout_ref.actor.optim.weight_decay", "0.01"},
    {Origin::verl, "p", "actor_rollout_ref.actor.optim.betas", "0.9 0.999"},
    {Origin::verl, "p", "actor_rollout_ref.actor.optim.warmup_style", "constant"},
    {Origin::verl, "p", "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio", "0"},
    {Origin::verl, "p", "actor_rollout_ref.actor.clip_ratio_c", "3.0"},
    {Origin::verl, "p", "actor_rollout_ref.actor.entropy_coeff", "0"},
    {Origin::verl, "p", "actor_rollout_ref.actor.ppo_mini_batch_size", "256"},
    {Origin::verl, "p", "actor_rollout_ref.rollout.val_kwargs.temperature", "0"},
    {Origin::verl, "p", "actor_rollout_ref.rollout.val_kwargs.n", "1"},
    {Origin::verl, "p", "trainer.total_epochs", "30"},
    {Origin::verl, "p", "critic.optim.lr", "1e-5"},
    {Origin::verl, "p", "critic.optim.weight_decay", "0.01"},
    {Origin::verl, "p", "critic.optim.betas", "0.9 0.999"},
    {Origin::verl, "p", "critic.optim.warmup_style", "constant"},
    {Origin::verl, "p", "critic.optim.lr_warmup_steps_ratio", "0"},
    {Origin::verl, "s", "optim.lr", "1e-5"},
    {Origin::verl, "s", "optim.weight_decay", "0.01"},
    {Origin::verl, "s", "optim.lr_scheduler", "cosine"},
    {Origin::verl, "s", "optim.lr_warmup_steps_ratio", "0.1"},
    {Origin::verl, "s", "data.train_batch_size", "256"},
    {Origin::verl, "s", "data.max_length", "1024"},
    {Origin::verl, "s", "trainer.total_epochs", "4"},
};

// Where one of two names says it, the other's default does not count.
constexpr std::pair<std::string_view, std::string_view> same_settings[] = {
    {"learning_rate", "adam.lr"},
    {"max_epochs", "train.max_epochs"},
    {"max_len", "data.max_len"},
    {"max_length", "max_seq_length"},
    {"beta", "kl_coef"},
    {"max_completion_length", "response_length"},
    {"actor_rollout_ref.actor.optim.warmup_style",
     "actor_rollout_ref.actor.optim.lr_scheduler_type"},
    {"critic.optim.warmup_style", "critic.optim.lr_scheduler_type"},
    {"optim.lr_scheduler", "optim.lr_scheduler_type"},
};

std::string toml_text(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string toml_of(const std::string& value) {
  if (value == "True" || value == "False") return value == "True" ? "true" : "false";
  if (value == "true" || value == "false") return value;
  const std::string number = toml_number(value);
  return number.empty() ? toml_text(value) : number;
}

std::string toml_list(const std::vector<std::string>& values, bool texts) {
  std::string out = "[";
  for (const std::string& value : values)
    out += (out.size() > 1 ? ", " : "") + (texts ? toml_text(value) : toml_of(value));
  return out + "]";
}

std::vector<std::string> split(const std::string& text) {
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

// Lists that the others write as one text with commas.
bool is_comma_list(std::string_view key) {
  return key.ends_with("dataset") || key.ends_with("_probs") || key.ends_with("lora.targets");
}
bool holds_texts(std::string_view key) { return !key.ends_with("_probs") && is_comma_list(key); }

bool is_key(std::string_view name) {
  const auto& infos = config::key_infos();
  return std::ranges::any_of(infos, [&](const auto& info) { return info.name == name; });
}

bool fits(const std::string& key, const std::string& text) try {
  static_cast<void>(config::parse_deck("", "deck", std::vector{key + "=" + text}));
  return true;
} catch (const UserError&) { return false; }

std::string with_value(std::string_view pattern, const std::string& value) {
  std::string out(pattern);
  if (const size_t at = out.find('$'); at != std::string::npos)
    out.replace(at, 1, toml_text(value).substr(1, toml_text(value).size() - 2));
  return out;
}

}  // namespace

std::string toml_number(const std::string& text) {
  if (text.empty() || text.find_first_not_of("+-.0123456789eE") != std::string::npos) return "";
  size_t used = 0;
  try {
    if (!std::isfinite(std::stod(text, &used)) || used != text.size()) return "";
  } catch (const std::exception&) { return ""; }
  std::string out = text;
  for (const std::string_view sign : {"", "+", "-"}) {  // ".5", "-.5"
    if (out.starts_with(base::text(sign, "."))) out.insert(sign.size(), "0");
  }
  const size_t dot = out.find('.');
  if (dot != std::string::npos && (dot + 1 == out.size() || !std::isdigit(out[dot + 1])))
    out.insert(dot + 1, "0");
  return out;
}

bool is_off(std::string_view value) {
  return value == "false" || value == "False" || value == "0" || value == "0.0" ||
         value == "none" || value.empty();
}

ForeignDeck::ForeignDeck(Origin origin, ForeignFile file, std::optional<Trainer> trainer)
    : origin_(origin) {
  for (ForeignSetting& setting : file.settings) {
    std::replace(setting.name.begin(), setting.name.end(), '-', '_');
    given_[setting.name] = std::move(setting);  // the last one counts, as everywhere
  }
  trainer_ = trainer ? *trainer : file.trainer ? *file.trainer : looks_like();
  add_defaults();
  follow_rules();
  for (const auto& [name, setting] : given_) {
    if (!done_.contains(name)) carry(setting);
  }
  copy_to_critic();
  end_schedule();
  drop_halves();
}

// By settings that only one trainer has.
Trainer ForeignDeck::looks_like() const {
  struct Mark {
    std::string_view name;
    Trainer trainer;
  };
  constexpr Mark marks[] = {{"num_generations", Trainer::ppo},
                            {"max_completion_length", Trainer::ppo},
                            {"reward_funcs", Trainer::ppo},
                            {"num_iterations", Trainer::ppo},
                            {"rollout.batch_size", Trainer::ppo},
                            {"rollout_batch_size", Trainer::ppo},
                            {"model.loss_type", Trainer::rm},
                            {"center_rewards_coefficient", Trainer::rm},
                            {"precompute_ref_log_probs", Trainer::dpo},
                            {"beta", Trainer::dpo},
                            {"model.beta", Trainer::dpo},
                            {"optim.lr", Trainer::sft},
                            {"model.partial_pretrain", Trainer::sft},
                            {"max_length", Trainer::sft},
                            {"max_seq_length", Trainer::sft},
                            {"packing", Trainer::sft},
                            {"dataset_text_field", Trainer::sft},
                            {"assistant_only_loss", Trainer::sft},
                            {"completion_only_loss", Trainer::sft}};
  for (const Mark& mark : marks) {
    if (given_.contains(std::string(mark.name))) return mark.trainer;
  }
  return Trainer::ppo;
}

void ForeignDeck::add_defaults() {
  const auto is_said = [this](std::string_view name) {
    for (const auto& [one, other] : same_settings) {
      if (one == name && given_.contains(std::string(other))) return true;
    }
    return given_.contains(std::string(name));
  };
  const char letter = config::to_string(trainer_)[0];
  for (const ForeignDefault& line : foreign_defaults) {
    if (line.origin != origin_ || line.trainers.find(letter) == std::string_view::npos ||
        is_said(line.name))
      continue;
    ForeignSetting setting{std::string(line.name), {std::string(line.value)}};
    if (const size_t blank = line.value.find(' '); blank != std::string_view::npos) {
      setting.values = {std::string(line.value.substr(0, blank)),
                        std::string(line.value.substr(blank + 1))};
      setting.is_list = true;
    }
    defaults_.insert(setting.name);
    given_[setting.name] = std::move(setting);
  }
}

std::string ForeignDeck::text(const std::filesystem::path& source) const {
  const auto command = config::to_string(trainer_);
  std::string out =
      base::text("# From ", source.string(), " (", config::name_of(origin_),
                 "), by `trireme import`, for `trireme ", command, "`. Check it with --dry-run.\n");
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

std::optional<std::string> ForeignDeck::value_of(const std::string& name) const {
  const auto found = given_.find(name);
  if (found == given_.end() || !found->second.unread.empty() || found->second.values.empty())
    return std::nullopt;
  return found->second.values.front();
}

std::optional<double> ForeignDeck::number_of(const std::string& name) const {
  const auto text = value_of(name);
  if (!text || toml_number(*text).empty()) return std::nullopt;
  return std::stod(*text);
}

bool ForeignDeck::given(const std::string& name) const {
  return given_.contains(name) && !defaults_.contains(name);
}

bool ForeignDeck::on(const std::string& name) const {
  const auto value = value_of(name);
  return value && !is_off(*value);
}

void ForeignDeck::set(const std::string& key, std::string text, std::string comment) {
  keys_[key] = {std::move(text), std::move(comment)};
}

std::string ForeignDeck::comment_for(const std::string& name) const {
  return defaults_.contains(name) ? base::text(config::name_of(origin_), "'s default") : "";
}

void ForeignDeck::leave(const ForeignSetting& setting, std::string_view why) {
  if (defaults_.contains(setting.name)) return;
  constexpr std::string_view nothing = config::foreign_nothing;
  std::string line(why.substr(why.starts_with(nothing) ? nothing.size() : 0));
  std::ranges::replace(line, '\n', ' ');  // it becomes a comment
  auto& list = why.starts_with(nothing) ? needless_ : left_;
  list.push_back(base::text(setting.name, ": ", line));
}

void ForeignDeck::carry(const ForeignSetting& setting) {
  const config::ForeignName* entry = config::foreign_name(origin_, setting.name);
  if (entry == nullptr && origin_ == Origin::trl)  // "model_init_kwargs.dtype"
    entry = config::foreign_name(origin_, setting.name.substr(0, setting.name.find('.')));
  const bool own = entry == nullptr && origin_ == Origin::openrlhf && is_key(setting.name);
  if (entry == nullptr && !own) {
    constexpr std::string_view unknown = "no setting of this name is known";
    return leave(setting, setting.unread.empty() ? std::string(unknown)
                                                 : base::text(setting.unread, " (", unknown, ")"));
  }
  const bool others = !own && trainer_ != Trainer::ppo && !entry->others.empty();
  const std::string key(own ? setting.name : std::string(others ? entry->others : entry->key));
  const std::string value = setting.values.empty() ? "" : setting.values.front();
  if (key.empty() || (!own && entry->note.starts_with(config::foreign_nothing))) {
    const bool off =
        setting.unread.empty() && setting.values.size() < 2 &&
        (is_off(value) || value == entry->value || (entry->value == "true" && value == "True"));
    return leave(setting, off ? base::text("nothing: ", value, " asks for nothing") : entry->note);
  }
  if (!setting.unread.empty()) return leave(setting, base::text(setting.unread, ": set ", key));
  if (!own && !entry->value.empty()) {
    if (is_off(value)) return;
    return place(setting, key, with_value(entry->value, value));
  }
  std::vector<std::string> values = setting.values;
  const bool list = setting.is_list || is_comma_list(key);
  if (!setting.is_list && list) values = split(value);
  for (std::string& one : values) one = config::word_here(origin_, key, one);
  if (values.empty()) return;  // "[]"
  // One value alone is a list of one, and the other way round.
  const std::string in_list = toml_list(values, holds_texts(key)), alone = toml_of(values.front());
  const bool as_list = list ? values.size() > 1 || fits(key, in_list) || !fits(key, alone)
                            : !fits(key, alone) && fits(key, in_list);
  place(setting, key, as_list ? in_list : alone);
}

// Values are checked one by one, as a deck's.
void ForeignDeck::place(const ForeignSetting& setting, const std::string& key,
                        const std::string& text) {
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
    if (const size_t at = problem.find(key); at != std::string::npos) problem = problem.substr(at);
    return leave(setting, problem);
  }
  if (!keys_.contains(key)) set(key, text, comment_for(setting.name));
}

}  // namespace trireme::tools
