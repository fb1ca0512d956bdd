#include <array>
#include <string_view>

#include "text/tokenizer_files.hpp"
#include "trireme/base/hash.hpp"

namespace trireme::text {

namespace {

struct Setting {
  std::string_view type, key;
  Json value;
};

// Settings that say nothing: by leaving them out tokenizers means the same. An empty type: all.
const std::vector<Setting>& silent_settings() {
  static const std::vector<Setting> settings{
      {"ByteLevel", "add_prefix_space", true},
      {"ByteLevel", "use_regex", true},
      {"Digits", "individual_digits", false},
      {"Split", "invert", false},
      {"Metaspace", "split", true},
      {"Metaspace", "prepend_scheme", "always"},
      {"BPE", "dropout", 0},
      {"BPE", "unk_token", ""},
      {"BPE", "continuing_subword_prefix", ""},
      {"BPE", "end_of_word_suffix", ""},
      {"BPE", "fuse_unk", false},
      {"BPE", "byte_fallback", false},
      {"BPE", "ignore_merges", false},
  };
  return settings;
}

bool is_silent(const std::string& type, const std::string& key, const Json& value) {
  if (value.is_null() || key == "trim_offsets") return true;  // offsets are not read
  for (const Setting& setting : silent_settings()) {
    if (setting.type == type && setting.key == key && setting.value == value) return true;
  }
  return false;
}

std::string type_in(const Json& part, const char* otherwise) {
  const auto type = part.find("type");
  return type != part.end() && type->is_string() ? type->get<std::string>() : otherwise;
}

// Appends the steps of a component, those of its sequences one by one.
void append_steps(const Json& part, Json& steps) {
  if (part.is_null()) return;
  if (!part.is_object()) {
    steps.push_back(part);
    return;
  }
  const std::string type = type_in(part, "");
  if (type == "Sequence") {
    for (const char* list : {"normalizers", "pretokenizers"}) {
      const auto found = part.find(list);
      if (found == part.end() || !found->is_array()) continue;
      for (const Json& step : *found) append_steps(step, steps);
      return;
    }
  }
  Json step = Json::object();
  for (const auto& [key, value] : part.items()) {
    if (!is_silent(type, key, value)) step[key] = value;
  }
  steps.push_back(std::move(step));
}

Json steps_of(const Json& json, const char* component) {
  Json steps = Json::array();
  if (const auto found = json.find(component); found != json.end()) append_steps(*found, steps);
  return steps;
}

// "left right" and ["left", "right"] are the same merge.
uint64_t add_merge(uint64_t digest, const Json& merge) {
  const auto add = [&](std::string_view side) {
    digest = base::fnv_step(base::fnv1a(side, digest), side.size());
  };
  if (merge.is_string()) {
    const std::string_view text = merge.get_ref<const std::string&>();
    const size_t space = text.find(' ');
    add(text.substr(0, space));
    if (space != std::string_view::npos) add(text.substr(space + 1));
  } else {
    for (const Json& side : merge) {
      if (side.is_string()) add(side.get_ref<const std::string&>());
    }
  }
  return digest;
}

}  // namespace

uint64_t encoding_rules(const Json& json) {
  Json rules = Json::object();
  for (const char* component : {"normalizer", "pre_tokenizer"})
    rules[component] = steps_of(json, component);
  uint64_t digest = base::fnv_basis;
  const auto model = json.find("model");
  if (model != json.end() && model->is_object()) {
    const std::string type = type_in(*model, "BPE");
    Json settings = {{"type", type}};
    for (const auto& [key, value] : model->items()) {
      if (key == "merges" && value.is_array()) {
        for (const Json& merge : value) digest = add_merge(digest, merge);
      } else if (!(key == "vocab" && value.is_object()) && !is_silent(type, key, value)) {
        settings[key] = value;  // a list of tokens with scores, too
      }
    }
    rules["model"] = std::move(settings);
  }
  return base::fnv1a(rules.dump(-1, ' ', false, Json::error_handler_t::replace), digest);
}

}  // namespace trireme::text
