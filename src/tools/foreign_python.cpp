// Reads the literal arguments of calls in Python.
#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>
#include <utility>

#include "tools/foreign_file.hpp"
#include "trireme/base/error.hpp"

namespace trireme::tools {
namespace {

using config::Trainer;
using Settings = std::vector<ForeignSetting>;

bool in_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Past the text or comment that begins at i; i + 1 where none does.
size_t after_token(std::string_view text, size_t i) {
  const char c = text[i];
  if (c == '#') return std::min(text.find('\n', i), text.size());
  if (c != '\'' && c != '"') return i + 1;
  const bool triple = text.substr(i, 3) == std::string(3, c);
  const std::string end(triple ? 3 : 1, c);
  for (size_t at = i + end.size(); at < text.size(); ++at) {
    if (text[at] == '\\') {
      ++at;
    } else if (text.substr(at, end.size()) == end) {
      return at + end.size();
    }
  }
  return text.size();
}

// The parts between commas that are in no bracket, from `begin` to the bracket that closes there.
std::vector<std::string> arguments_from(std::string_view text, size_t begin) {
  std::vector<std::string> out(1);
  int depth = 0;
  for (size_t i = begin; i < text.size();) {
    const char c = text[i];
    const size_t next = after_token(text, i);
    if (depth == 0 && (c == ')' || c == ']')) break;
    if (c == '(' || c == '[' || c == '{') ++depth;
    if (c == ')' || c == ']' || c == '}') --depth;
    if (depth == 0 && c == ',') {
      out.emplace_back();
    } else if (c != '#') {
      out.back() += text.substr(i, next - i);
    }
    i = next;
  }
  return out;
}

std::string trimmed(std::string_view text) {
  const auto blank = [](unsigned char c) { return std::isspace(c) != 0; };
  while (!text.empty() && blank(static_cast<unsigned char>(text.front()))) text.remove_prefix(1);
  while (!text.empty() && blank(static_cast<unsigned char>(text.back()))) text.remove_suffix(1);
  return std::string(text);
}

// A number, text, True or False; false for expressions.
bool add_literal(const std::string& text, ForeignSetting& setting) {
  if (text == "True" || text == "False") {
    setting.values.emplace_back(text == "True" ? "true" : "false");
    return true;
  }
  const bool quoted = text.size() >= 2 && (text.front() == '"' || text.front() == '\'') &&
                      after_token(text, 0) == text.size();
  if (quoted) {
    const size_t marks = text.starts_with("\"\"\"") || text.starts_with("'''") ? 3 : 1;
    setting.values.push_back(text.substr(marks, text.size() - 2 * marks));
    return setting.values.back().find('\\') == std::string::npos;
  }
  std::string digits = text;
  std::erase(digits, '_');
  if (digits.find_first_not_of("+-.0123456789eE") != std::string::npos) return false;
  size_t used = 0;
  try {
    static_cast<void>(std::stod(digits, &used));
  } catch (const std::exception&) { return false; }
  if (used != digits.size()) return false;
  setting.values.push_back(digits);
  return true;
}

void add_argument(const std::string& argument, std::string_view prefix, Settings& out) {
  const size_t equals = argument.find('=');
  if (equals == std::string::npos) {
    if (const std::string text = trimmed(argument); text.starts_with("**"))
      out.push_back({text.substr(2), {}, false, "it holds arguments that are not read"});
    return;
  }
  ForeignSetting setting{trimmed(std::string_view(argument).substr(0, equals)), {}};
  const std::string value = trimmed(std::string_view(argument).substr(equals + 1));
  if (!is_foreign_name(setting.name) || value == "None") return;
  if (!setting.name.starts_with(prefix) && !setting.name.starts_with("use_"))
    setting.name.insert(0, prefix);
  bool read = true;
  if (value.starts_with('[') || value.starts_with('(')) {
    setting.is_list = true;
    for (const std::string& item : arguments_from(value, 1)) {
      const std::string text = trimmed(item);
      if (!text.empty()) read = add_literal(text, setting) && read;
    }
  } else {
    read = add_literal(value, setting);
  }
  if (!read) setting.unread = "its value is an expression: " + value;
  out.push_back(std::move(setting));
}

struct Call {
  std::string name;  // without its module
  size_t arguments = 0;
};

// Calls of names with a capital letter, outside texts, comments and definitions.
std::vector<Call> calls_of(std::string_view text) {
  std::vector<Call> out;
  std::string before, name;
  for (size_t i = 0; i < text.size();) {
    if (!in_name(text[i])) {
      if (text[i] == '(' && !name.empty() && std::isupper(static_cast<unsigned char>(name[0])) &&
          before != "class")
        out.push_back({name, i + 1});
      if (text[i] != ' ') name.clear();
      i = after_token(text, i);
      continue;
    }
    const size_t begin = i;
    while (i < text.size() && in_name(text[i])) ++i;
    before = std::exchange(name, std::string(text.substr(begin, i - begin)));
  }
  return out;
}

struct TrainerClass {
  std::string_view part;  // of a class's name
  Trainer trainer;
  std::string_view loss;  // that the class stands for
};
constexpr std::array trainer_classes{
    TrainerClass{"GRPO", Trainer::ppo, ""},     TrainerClass{"RLOO", Trainer::ppo, ""},
    TrainerClass{"PPO", Trainer::ppo, ""},      TrainerClass{"SFT", Trainer::sft, ""},
    TrainerClass{"ORPO", Trainer::dpo, "orpo"}, TrainerClass{"DPO", Trainer::dpo, ""},
    TrainerClass{"CPO", Trainer::dpo, "cpo"},   TrainerClass{"KTO", Trainer::dpo, "kto"},
    TrainerClass{"Reward", Trainer::rm, ""}};

const TrainerClass* trainer_class(std::string_view name) {
  if (name.starts_with("Online")) return nullptr;
  const auto found = std::ranges::find_if(trainer_classes, [&](const TrainerClass& one) {
    return name.find(one.part) != std::string_view::npos;
  });
  return found == trainer_classes.end() ? nullptr : &*found;
}

// Defaults of trainers beside GRPOTrainer, in GRPOConfig's words.
struct ClassDefault {
  std::string_view part, name, value;
};
constexpr ClassDefault class_defaults[] = {
    {"RLOO", "scale_rewards", "rloo"},
    {"RLOO", "beta", "0.05"},
    {"RLOO", "num_generations", "2"},
    {"PPO", "scale_rewards", "gae"},
    {"PPO", "num_generations", "1"},
    {"PPO", "kl_coef", "0.05"},
    {"PPO", "learning_rate", "3e-6"},
    {"PPO", "num_ppo_epochs", "4"},
    {"PPO", "response_length", "53"},
    {"PPO", "temperature", "0.7"},
    {"PPO", "lam", "0.95"},
};

// Arguments of a trainer that say what is trained; the others are data and parts of the program.
constexpr std::array<std::string_view, 4> of_trainers{"model", "ref_model", "reward_funcs",
                                                      "rollout_func"};

class Python {
 public:
  Python(std::string_view text, const std::string& file) : text_(text) {
    for (const Call& call : calls_of(text)) read(call);
    if (!known_ && first_) {
      add_arguments(*first_, "");
      known_ = true;
    }
    VALIDATE(
        known_, ExitCode::bad_data, file,
        " calls no ...Config(...) (the settings of TRL's trainers): give the file that does, or a "
        "script with the command line that starts it");
  }
  ForeignFile take() { return std::move(out_); }

 private:
  void read(const Call& call) {
    const bool config = call.name.ends_with("Config") || call.name.ends_with("Arguments");
    const TrainerClass* of = trainer_class(call.name);
    if (call.name == "LoraConfig") {
      out_.settings.push_back({"lora_of_peft", {"true"}});
      add_arguments(call, "lora_");
    } else if (call.name == "ModelConfig" || call.name == "ScriptArguments" ||
               call.name == "BitsAndBytesConfig") {
      add_arguments(call, "");
    } else if (of != nullptr && config) {
      known_ = true;
      out_.trainer = of->trainer;
      if (!of->loss.empty()) out_.settings.push_back({"loss_type", {std::string(of->loss)}});
      for (const ClassDefault& one : class_defaults) {
        if (one.part == of->part)
          out_.settings.push_back({std::string(one.name), {std::string(one.value)}});
      }
      add_arguments(call, "");
    } else if (of != nullptr && call.name.ends_with("Trainer")) {
      Settings all;
      for (const std::string& argument : arguments_from(text_, call.arguments))
        add_argument(argument, "", all);
      for (ForeignSetting& setting : all) {
        if (std::ranges::count(of_trainers, setting.name) > 0) add(std::move(setting));
      }
    } else if (config && !first_) {
      first_ = call;
    }
  }
  void add_arguments(const Call& call, std::string_view prefix) {
    for (const std::string& argument : arguments_from(text_, call.arguments))
      add_argument(argument, prefix, out_.settings);
  }
  // A model that is an object adds nothing to one that has been named.
  void add(ForeignSetting setting) {
    if (!setting.unread.empty()) {
      setting.unread = "it is an object of the script";
      for (const ForeignSetting& other : out_.settings) {
        if (other.name == "model_name_or_path" && setting.name == "model") return;
      }
    }
    out_.settings.push_back(std::move(setting));
  }

  std::string_view text_;
  ForeignFile out_;
  std::optional<Call> first_;  // of a class that is not known
  bool known_ = false;
};

}  // namespace

ForeignFile read_foreign_python(std::string_view text, const std::string& file) {
  return Python(text, file).take();
}

}  // namespace trireme::tools
