#include "tools/foreign_file.hpp"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cctype>
#include <string_view>
#include <utility>

#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"

namespace trireme::tools {
namespace {

using Settings = std::vector<ForeignSetting>;

bool is_name(std::string_view text) {
  return !text.empty() && (std::isalpha(static_cast<unsigned char>(text.front())) != 0) &&
         std::ranges::all_of(text, [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.';
         });
}

// ---- a command line --------------------------------------------------------------------------

struct Word {
  std::string text;
  bool expands = false;  // has a $ outside single quotes
};

// As a shell splits it: quotes, backslashes, comments; line ends separate.
std::vector<Word> shell_words(std::string_view text) {
  std::vector<Word> out;
  Word word;
  bool open = false;
  char quote = 0;
  const auto end_word = [&] {
    if (open) out.push_back(std::exchange(word, {}));
    open = false;
  };
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\\' && quote != '\'' && i + 1 < text.size()) {
      if (text[++i] == '\n') continue;
      word.text += text[i];
      open = true;
    } else if (quote != 0) {
      if (c == quote) {
        quote = 0;
      } else {
        word.text += c;
        word.expands = word.expands || (c == '$' && quote == '"');
      }
    } else if (c == '\'' || c == '"') {
      quote = c;
      open = true;
    } else if (c == '#' && !open) {
      while (i + 1 < text.size() && text[i + 1] != '\n') ++i;
    } else if (std::isspace(static_cast<unsigned char>(c)) != 0) {
      end_word();
    } else {
      word.text += c;
      word.expands = word.expands || c == '$' || c == '`';
      open = true;
    }
  }
  end_word();
  return out;
}

void add_value(ForeignSetting& setting, const Word& word) {
  if (word.expands) setting.unread = "its value is a shell variable";
  setting.values.push_back(word.text);
}

// "[a, b]" and "['a','b']" of hydra are lists.
void split_list(ForeignSetting& setting) {
  if (setting.values.size() != 1) return;
  std::string text = setting.values.front();
  if (!text.starts_with('[') || !text.ends_with(']')) return;
  setting.values.clear();
  setting.is_list = true;
  for (const YAML::Node& item : YAML::Load(text)) {
    if (item.IsScalar()) setting.values.push_back(item.Scalar());
  }
}

Settings read_command(std::string_view text) {
  Settings out;
  bool takes_values = false;
  for (const Word& word : shell_words(text)) {
    const std::string_view whole = word.text;
    const size_t equals = whole.find('=');
    const bool flag = whole.starts_with("--") && is_name(whole.substr(2, equals - 2));
    const std::string_view before = whole.substr(0, equals);
    const std::string_view bare = before.starts_with('+') ? before.substr(before.rfind('+') + 1)
                                                          : before;  // hydra: + and ++ add
    const bool hydra = equals != std::string_view::npos && is_name(bare) &&
                       bare.find('.') != std::string_view::npos;
    if (flag || hydra) {
      out.push_back({std::string(flag ? whole.substr(2, equals - 2) : bare), {}});
      takes_values = flag && equals == std::string_view::npos;
      if (!takes_values) add_value(out.back(), {word.text.substr(equals + 1), word.expands});
    } else if (takes_values && whole != "|" && whole != "&&" && whole != ";" && whole != "&") {
      add_value(out.back(), word);
    } else {
      takes_values = false;
    }
  }
  for (ForeignSetting& setting : out) {
    if (setting.values.empty()) setting.values = {"true"};
    setting.is_list = setting.values.size() > 1;
    split_list(setting);
  }
  return out;
}

// ---- YAML, JSON ------------------------------------------------------------------------------

void add_nodes(const YAML::Node& node, const std::string& name, Settings& out) {
  if (node.IsMap()) {
    for (const auto& entry : node) {
      const std::string key = entry.first.Scalar();
      if (name.empty() && key == "defaults") continue;  // hydra's list of files
      add_nodes(entry.second, name.empty() ? key : name + "." + key, out);
    }
    return;
  }
  if (node.IsNull() || !node.IsDefined()) return;
  ForeignSetting setting{name, {}};
  if (node.IsScalar()) {
    if (node.Scalar() == "???" || node.Scalar() == "null") return;  // hydra: missing
    if (node.Scalar().find("${") != std::string::npos)
      setting.unread = "its value refers to another one";
    setting.values = {node.Scalar()};
  } else {
    setting.is_list = true;
    for (const YAML::Node& item : node) {
      if (item.IsScalar()) {
        setting.values.push_back(item.Scalar());
      } else {
        setting.unread = "its value is a list of lists or maps";
      }
    }
  }
  out.push_back(std::move(setting));
}

Settings read_yaml(const std::string& text, const std::filesystem::path& path) try {
  Settings out;
  add_nodes(YAML::Load(text), "", out);
  return out;
} catch (const YAML::Exception& error) {
  throw UserError(ExitCode::bad_data,
                  base::text(path.string(), ":", error.mark.line + 1, ": ", error.msg));
}

// ---- Python ----------------------------------------------------------------------------------

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
    setting.values.push_back(text.substr(1, text.size() - 2));
    return true;
  }
  std::string digits = text;
  std::erase(digits, '_');
  size_t used = 0;
  try {
    static_cast<void>(std::stod(digits, &used));
  } catch (const std::exception&) { return false; }
  if (used != digits.size()) return false;
  setting.values.push_back(digits);
  return true;
}

void add_argument(const std::string& argument, Settings& out) {
  const size_t equals = argument.find('=');
  if (equals == std::string::npos) return;
  ForeignSetting setting{trimmed(std::string_view(argument).substr(0, equals)), {}};
  const std::string value = trimmed(std::string_view(argument).substr(equals + 1));
  if (!is_name(setting.name) || value == "None") return;
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

Settings read_python(std::string_view text, const std::filesystem::path& path) {
  constexpr std::string_view call = "Config(";
  const size_t found = text.find(call);
  VALIDATE(found != std::string_view::npos, ExitCode::bad_data, path.string(),
           " calls no ...Config(...) (the settings of TRL's trainers): give the file that does");
  Settings out;
  for (const std::string& argument : arguments_from(text, found + call.size()))
    add_argument(argument, out);
  return out;
}

}  // namespace

std::vector<ForeignSetting> read_foreign_file(const std::filesystem::path& path) {
  const std::string text = base::read_file(path), kind = path.extension().string();
  if (kind == ".py") return read_python(text, path);
  if (kind == ".yaml" || kind == ".yml" || kind == ".json") return read_yaml(text, path);
  return read_command(text);
}

}  // namespace trireme::tools
