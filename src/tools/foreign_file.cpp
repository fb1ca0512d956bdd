#include "tools/foreign_file.hpp"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"

namespace trireme::tools {
namespace {

using Settings = std::vector<ForeignSetting>;

// YAML 1.1, as PyYAML reads it: yes, no, on and off are true and false where they have no quotes.
std::string scalar_of(const YAML::Node& node) {
  std::string text = node.Scalar();
  if (node.Tag() != "?") return text;
  std::string lower = text;
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
  if (lower == "yes" || lower == "on" || lower == "true") return "true";
  if (lower == "no" || lower == "off" || lower == "false") return "false";
  return text;
}

bool is_missing(const YAML::Node& node) {
  constexpr std::array<std::string_view, 3> words{"???", "null", "None"};  // hydra: missing
  return !node.IsDefined() || node.IsNull() ||
         (node.IsScalar() && std::ranges::count(words, node.Scalar()) > 0);
}

void add_nodes(const YAML::Node& node, const std::string& name, Settings& out) {
  if (node.IsMap()) {
    for (const auto& entry : node) {
      const std::string key = entry.first.Scalar();
      if (name.empty() && key == "defaults") continue;  // hydra's list of files
      if (key == "_target_") continue;                  // hydra's class of a part
      add_nodes(entry.second, name.empty() ? key : name + "." + key, out);
    }
    return;
  }
  if (is_missing(node) || name.empty()) return;
  ForeignSetting setting{name, {}};
  const auto add = [&setting](const YAML::Node& item) {
    if (item.Scalar().find("${") != std::string::npos)
      setting.unread = "its value refers to another one";
    setting.values.push_back(scalar_of(item));
  };
  if (node.IsScalar()) {
    add(node);
  } else {
    setting.is_list = true;
    for (const YAML::Node& item : node) {
      if (item.IsScalar()) {
        add(item);
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

}  // namespace

void split_foreign_list(ForeignSetting& setting) try {
  if (setting.values.size() != 1) return;
  const std::string text = setting.values.front();
  if (!text.starts_with('[') || !text.ends_with(']')) return;
  std::vector<std::string> values;
  for (const YAML::Node& item : YAML::Load(text)) {
    if (!item.IsScalar()) setting.unread = "its value is a list of lists or maps";
    if (item.IsScalar()) values.push_back(scalar_of(item));
  }
  setting.values = std::move(values);
  setting.is_list = true;
} catch (const YAML::Exception&) { setting.unread = "its value is a list that cannot be read"; }

bool is_foreign_name(std::string_view text) {
  return !text.empty() && (std::isalpha(static_cast<unsigned char>(text.front())) != 0) &&
         std::ranges::all_of(text, [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.';
         });
}

ForeignFile read_foreign_file(const std::filesystem::path& path) {
  const std::string text = base::read_file(path), kind = path.extension().string();
  ForeignFile out;
  if (kind == ".py") {
    out = read_foreign_python(text, path.string());
  } else if (kind == ".yaml" || kind == ".yml" || kind == ".json") {
    out.settings = read_yaml(text, path);
  } else {
    out = read_foreign_command(text);
  }
  VALIDATE(!out.settings.empty(), ExitCode::bad_data, path.string(),
           " has no setting (a flag --name, name.of.hydra=value, or a key of YAML): give the file "
           "with the command line or the configuration");
  return out;
}

}  // namespace trireme::tools
