// Reads command lines, and shell scripts with one.
#include <algorithm>
#include <array>
#include <cctype>
#include <functional>
#include <map>
#include <string_view>
#include <utility>

#include "tools/foreign_file.hpp"
#include "trireme/base/text.hpp"

namespace trireme::tools {
namespace {

using config::Trainer;
// Without a value: set to several ones, or to what only a shell knows.
using Variables = std::map<std::string, std::optional<std::string>, std::less<>>;

bool is_blank(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }
bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }
bool is_identifier(std::string_view text) {
  if (text.empty() || std::isdigit(static_cast<unsigned char>(text.front())) != 0) return false;
  for (const char c : text) {
    if (!is_word(c)) return false;
  }
  return true;
}

// Whole numbers in $((...)): + - * / % and brackets.
class Arithmetic {
 public:
  Arithmetic(std::string_view text, const Variables& variables)
      : text_(text), variables_(variables) {}
  std::optional<int64_t> value() {
    const auto out = sum();
    skip();
    return at_ == text_.size() ? out : std::nullopt;
  }

 private:
  void skip() {
    while (at_ < text_.size() && is_blank(text_[at_])) ++at_;
  }
  bool takes(char c) {
    skip();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  std::optional<int64_t> sum() {
    auto out = product();
    while (out) {
      const bool plus = takes('+');
      if (!plus && !takes('-')) break;
      const auto next = product();
      if (!next) return std::nullopt;
      out = plus ? *out + *next : *out - *next;
    }
    return out;
  }
  std::optional<int64_t> product() {
    auto out = atom();
    while (out) {
      const bool times = takes('*'), over = !times && takes('/');
      if (!times && !over && !takes('%')) break;
      const auto next = atom();
      if (!next || (!times && *next == 0)) return std::nullopt;
      out = times ? *out * *next : over ? *out / *next : *out % *next;
    }
    return out;
  }
  std::optional<int64_t> atom() {
    if (takes('(')) {
      const auto out = sum();
      return takes(')') ? out : std::nullopt;
    }
    takes('$');
    const bool braces = takes('{');
    skip();
    const size_t begin = at_;
    while (at_ < text_.size() && is_word(text_[at_])) ++at_;
    const std::string_view name = text_.substr(begin, at_ - begin);
    if ((braces && !takes('}')) || name.empty() || name.size() > 15) return std::nullopt;
    if (!is_identifier(name)) return number(name);
    const auto found = variables_.find(name);
    if (found == variables_.end() || !found->second || found->second->size() > 15)
      return std::nullopt;
    return number(*found->second);
  }
  static std::optional<int64_t> number(std::string_view digits) {
    int64_t out = 0;
    for (const char c : digits) {
      if (c < '0' || c > '9') return std::nullopt;
      out = out * 10 + (c - '0');
    }
    if (digits.empty()) return std::nullopt;
    return out;
  }

  std::string_view text_;
  const Variables& variables_;
  size_t at_ = 0;
};

struct Word {
  std::string text;
  bool expands = false;  // has a part that only a shell knows
  bool first = false;    // of a command
};

// As a shell splits it: quotes, backslashes, comments, variables; line ends and ; | & ( ) < > part
// commands.
class Words {
 public:
  Words(std::string_view text, Variables& variables) : text_(text), variables_(variables) {
    while (at_ < text_.size()) step();
    end_word();
  }
  std::vector<Word> take() { return std::move(out_); }

 private:
  void step() {
    const char c = text_[at_];
    if (c == '\\' && quote_ != '\'' && at_ + 1 < text_.size()) {
      ++at_;
      if (text_[at_] == '\r' && at_ + 1 < text_.size() && text_[at_ + 1] == '\n') ++at_;
      if (text_[at_] != '\n') add(text_[at_]);
      ++at_;
    } else if (c == '$' && quote_ != '\'') {
      expand();
    } else if (quote_ != 0) {
      if (c == quote_) {
        quote_ = 0;
      } else {
        add(c);
      }
      ++at_;
    } else {
      step_unquoted(c);
      ++at_;
    }
  }
  void step_unquoted(char c) {
    if (c == '\'' || c == '"') {
      quote_ = c;
      open_ = true;
    } else if (c == '#' && !open_) {
      while (at_ + 1 < text_.size() && text_[at_ + 1] != '\n') ++at_;
    } else if (is_blank(c)) {
      end_word();
      if (c == '\n') first_ = true;
    } else if (std::string_view(";|&()<>").find(c) != std::string_view::npos) {
      if (c == '(' && word_.text.ends_with('=')) open_ = false, word_ = {};  // an array
      end_word();
      first_ = true;
    } else {
      if (c == '`') word_.expands = true;
      add(c);
    }
  }
  void add(char c) {
    word_.text += c;
    open_ = true;
  }
  void end_word() {
    if (open_) {
      word_.first = std::exchange(first_, false);
      const size_t equals = word_.text.find('=');
      if (equals != std::string::npos && is_identifier(word_.text.substr(0, equals)))
        assign(word_.text.substr(0, equals), word_.text.substr(equals + 1));
      out_.push_back(std::exchange(word_, {}));
    }
    open_ = false;
  }
  // Two different values are two branches of the script: which one counts is not known.
  void assign(const std::string& name, std::string value) {
    std::optional<std::string> known;
    if (!word_.expands) known = std::move(value);
    const auto [found, fresh] = variables_.try_emplace(name, known);
    if (!fresh && found->second != known) found->second.reset();
  }

  // At a "$".
  void expand() {
    const std::string_view rest = text_.substr(at_);
    std::string_view name;
    size_t size = 1;
    std::optional<std::string> value;
    if (rest.starts_with("$((") || rest.starts_with("$(")) {
      size = bracketed(rest, '(', ')');
      const bool sum = rest.starts_with("$((") && rest.substr(0, size).ends_with("))");
      if (sum) {
        if (const auto number = Arithmetic(rest.substr(3, size - 5), variables_).value())
          value = base::text(*number);
      }
    } else if (rest.starts_with("${")) {
      size = bracketed(rest, '{', '}');
      name = rest.substr(2, size > 3 ? size - 3 : 0);
      const size_t colon = name.find(":-");
      value = value_of(name.substr(0, colon));
      if (!value && colon != std::string_view::npos && !variables_.contains(name.substr(0, colon)))
        value = std::string(name.substr(colon + 2));
      if (value && value->find('$') != std::string::npos) value.reset();
    } else {
      while (size < rest.size() && is_word(rest[size])) ++size;
      value = value_of(rest.substr(1, size - 1));
    }
    word_.expands = word_.expands || !value;
    for (const char c : value ? *value : std::string(rest.substr(0, size))) {
      if (value && quote_ == 0 && is_blank(c)) {
        end_word();
      } else {
        add(c);
      }
    }
    at_ += size;
  }
  std::optional<std::string> value_of(std::string_view name) const {
    const auto found = variables_.find(name);
    return found == variables_.end() ? std::nullopt : found->second;
  }
  // Up to the bracket that closes the first one.
  static size_t bracketed(std::string_view text, char opens, char closes) {
    int depth = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] == opens) ++depth;
      if (text[i] == closes && --depth == 0) return i + 1;
    }
    return text.size();
  }

  std::string_view text_;
  Variables& variables_;
  std::vector<Word> out_;
  Word word_;
  size_t at_ = 0;
  bool open_ = false, first_ = true;
  char quote_ = 0;
};

// The name of "--name" and "--name=value"; empty: another word.
std::string_view flag_of(std::string_view word) {
  if (!word.starts_with("--")) return {};
  const std::string_view name = word.substr(2, word.find('=') - 2);
  return is_foreign_name(name) ? name : std::string_view{};
}

// Commands within quotes (bash -c "...") are read, too.
std::vector<Word> command_words(std::string_view text, Variables& variables) {
  std::vector<Word> out;
  for (Word& word : Words(text, variables).take()) {
    const size_t equals = word.text.find('=');
    const bool value = !flag_of(word.text).empty() && equals != std::string::npos &&
                       word.text.find_first_of(" \n") > equals;
    const size_t inside = word.text.find(" --");
    if (value || inside == std::string::npos ||
        flag_of(
            word.text.substr(inside + 1, word.text.find_first_of(" \n=", inside + 1) - inside - 1))
            .empty()) {
      out.push_back(std::move(word));
      continue;
    }
    auto inner = Words(word.text, variables).take();
    out.insert(out.end(), inner.begin(), inner.end());
  }
  return out;
}

// The pipeline that a script or module of the others is for.
std::optional<Trainer> trainer_of(std::string_view word, std::string_view before) {
  struct Name {
    std::string_view stem;
    Trainer trainer;
  };
  constexpr std::array names{Name{"train_ppo_ray", Trainer::ppo},
                             Name{"train_ppo", Trainer::ppo},
                             Name{"main_ppo", Trainer::ppo},
                             Name{"main_dapo", Trainer::ppo},
                             Name{"grpo", Trainer::ppo},
                             Name{"rloo", Trainer::ppo},
                             Name{"train_sft", Trainer::sft},
                             Name{"sft", Trainer::sft},
                             Name{"sft_trainer", Trainer::sft},
                             Name{"fsdp_sft_trainer", Trainer::sft},
                             Name{"train_rm", Trainer::rm},
                             Name{"reward", Trainer::rm},
                             Name{"reward_modeling", Trainer::rm},
                             Name{"train_dpo", Trainer::dpo},
                             Name{"dpo", Trainer::dpo}};
  const bool script = word.ends_with(".py");
  if (script) word.remove_suffix(3);
  const bool module =
      word.starts_with("openrlhf.cli.") || word.starts_with("verl.") || word.starts_with("recipe.");
  if (!script && !module && before != "trl") return std::nullopt;
  const std::string_view stem = word.substr(word.find_last_of("/.") + 1);
  for (const Name& name : names) {
    if (name.stem == stem && (!script || stem != "reward")) return name.trainer;
  }
  return std::nullopt;
}

void add_value(ForeignSetting& setting, std::string_view value, const Word& word) {
  if (word.expands) setting.unread = "its value is a shell variable";
  setting.values.emplace_back(value);
}

class Command {
 public:
  explicit Command(std::string_view text) {
    Variables variables;
    for (const Word& word : command_words(text, variables)) add(word);
    for (ForeignSetting& setting : out_.settings) {
      if (setting.values.empty()) setting.values = {"true"};
      setting.is_list = setting.values.size() > 1;
      split_foreign_list(setting);
    }
  }
  ForeignFile take() { return std::move(out_); }

 private:
  void add(const Word& word) {
    if (word.first) {
      takes_values_ = false;
      command_ = out_.settings.size();
      other_ = is_other(word.text);
    }
    const std::string_view whole = word.text;
    const size_t equals = whole.find('=');
    const bool assigns = equals != std::string_view::npos;
    if (const auto trainer = trainer_of(whole, before_)) {
      out_.trainer = trainer;
      out_.settings.resize(command_);  // the launcher's own
      other_ = false;
      takes_values_ = false;
    } else if (other_) {
      return;
    } else if (const auto flag = flag_of(whole); !flag.empty()) {
      takes_values_ = !assigns && flag != "module";  // a launcher's
      if (flag == "module") return;
      out_.settings.push_back({std::string(flag), {}});
      if (assigns) add_value(out_.settings.back(), whole.substr(equals + 1), word);
    } else if (const auto name = override_of(whole.substr(0, equals)); assigns && !name.empty()) {
      takes_values_ = false;
      const std::string_view value = whole.substr(equals + 1);
      if (value == "null" || value == "None") return;
      out_.settings.push_back({std::string(name), {}});
      add_value(out_.settings.back(), value, word);
    } else if (takes_values_) {
      add_value(out_.settings.back(), whole, word);
    }
    before_ = word.text;
  }
  // Commands beside the trainer, up to one that they start.
  static bool is_other(std::string_view word) {
    constexpr std::array<std::string_view, 11> names{
        "ray", "huggingface-cli", "tee", "srun", "docker", "pip", "hf", "wget", "curl",
        "git", "export"};
    return std::ranges::count(names, word.substr(word.rfind('/') + 1)) > 0;
  }
  // hydra: + and ++ add; every name has a dot.
  static std::string_view override_of(std::string_view name) {
    name.remove_prefix(std::min(name.find_first_not_of('+'), name.size()));
    const bool good = is_foreign_name(name) && name.find('.') != std::string_view::npos;
    return good ? name : std::string_view{};
  }

  ForeignFile out_;
  std::string before_;
  size_t command_ = 0;  // settings before this command
  bool takes_values_ = false, other_ = false;
};

}  // namespace

ForeignFile read_foreign_command(std::string_view text) { return Command(text).take(); }

}  // namespace trireme::tools
