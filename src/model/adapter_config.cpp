// Reads and writes adapter_config.json, peft's.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/log.hpp"
#include "trireme/base/text.hpp"
#include "trireme/config/models_of.hpp"
#include "trireme/config/options.hpp"
#include "trireme/model/adapter_files.hpp"
#include "trireme/model/safetensors.hpp"

namespace trireme::model {
namespace fs = std::filesystem;

namespace {

using Json = nlohmann::ordered_json;

// One key after another of an adapter_config.json, with messages that name file and key.
class ConfigReader {
 public:
  explicit ConfigReader(const fs::path& folder) : file_((folder / adapter_config_name).string()) {
    std::error_code error;
    VALIDATE(fs::exists(file_, error), ExitCode::input_missing, "no adapter at ", folder.string(),
             " (no ", adapter_config_name,
             " in it): expected a folder with it and adapter_model.safetensors, as peft stores "
             "adapters");
    json_ = Json::parse(base::read_file(file_), nullptr, false);
    VALIDATE(json_.is_object(), ExitCode::bad_data, file_,
             " is not a JSON object: replace the file");
  }

  Adapter adapter() const {
    refuse_others();
    Adapter out;
    out.strict = false;
    out.rank = integer(required("r"), "r");
    out.alpha = number(required("lora_alpha"), "lora_alpha");
    out.rslora = flag("use_rslora");
    out.dropout = has("lora_dropout") ? number(json_["lora_dropout"], "lora_dropout") : 0;
    const Json& targets = required("target_modules");
    if (targets.is_string() && targets != "all-linear") {
      out.target_pattern = targets.get<std::string>();
    } else {
      out.targets = words("target_modules");
    }
    out.bias = has("bias") ? text("bias") : "none";
    if (has("exclude_modules") && json_["exclude_modules"].is_string()) {
      out.excluded_pattern = text("exclude_modules");
    } else {
      out.excluded = words("exclude_modules");
    }
    out.modules_to_save = words("modules_to_save");
    out.layers = integers("layers_to_transform");
    out.rank_pattern = pattern<int64_t>("rank_pattern", &ConfigReader::integer);
    out.alpha_pattern = pattern<double>("alpha_pattern", &ConfigReader::number);
    if (flag("fan_in_fan_out"))
      log::warning(
          base::text(file_,
                     ": fan_in_fan_out is true, but linear layers of this model are stored "
                     "[outputs, inputs]: taken as false, as peft does"));
    return out;
  }
  std::string text(const char* key) const {
    return has(key) && json_[key].is_string() ? json_[key].get<std::string>() : "";
  }

 private:
  bool has(const char* key) const { return json_.contains(key) && !json_[key].is_null(); }
  const Json& required(const char* key) const {
    VALIDATE(has(key), ExitCode::bad_data, file_, ": ", key, " is missing: complete the file");
    return json_[key];
  }
  [[noreturn]] void wrong(const std::string& key, const Json& value, const char* wanted) const {
    throw UserError(ExitCode::bad_data, base::text(file_, ": ", key, " is ", value.dump(),
                                                   " (must be ", wanted, "): correct it"));
  }
  int64_t integer(const Json& value, const std::string& key) const {
    if (!value.is_number_integer()) wrong(key, value, "a whole number");
    return value.get<int64_t>();
  }
  double number(const Json& value, const std::string& key) const {
    if (!value.is_number()) wrong(key, value, "a number");
    return value.get<double>();
  }
  bool flag(const char* key) const {
    if (!has(key)) return false;
    if (!json_[key].is_boolean()) wrong(key, json_[key], "true or false");
    return json_[key].get<bool>();
  }
  std::vector<std::string> words(const char* key) const {
    std::vector<std::string> out;
    if (!has(key)) return out;
    const Json& list = json_[key];
    if (list.is_string()) return {list.get<std::string>()};
    if (!list.is_array()) wrong(key, list, "a list of names");
    for (const Json& word : list) {
      if (!word.is_string()) wrong(key, list, "a list of names");
      if (std::ranges::count(out, word.get<std::string>()) == 0)
        out.push_back(word.get<std::string>());
    }
    return out;
  }
  std::vector<int64_t> integers(const char* key) const {
    if (!has(key)) return {};
    if (json_[key].is_number_integer()) return {json_[key].get<int64_t>()};
    if (!json_[key].is_array()) wrong(key, json_[key], "a list of numbers");
    std::vector<int64_t> out;
    for (const Json& value : json_[key]) out.push_back(integer(value, key));
    return out;
  }
  template <class T>
  std::vector<std::pair<std::string, T>> pattern(
      const char* key, T (ConfigReader::*read)(const Json&, const std::string&) const) const {
    std::vector<std::pair<std::string, T>> out;
    if (!has(key)) return out;
    if (!json_[key].is_object()) wrong(key, json_[key], "an object");
    for (const auto& [name, value] : json_[key].items())
      out.emplace_back(name, (this->*read)(value, base::text(key, ".", name)));
    return out;
  }

  // What would compute something else.
  void refuse_others() const {
    const std::string type = text("peft_type");
    VALIDATE(type == "LORA", ExitCode::bad_data, file_, ": peft_type is \"", type,
             "\", this program reads LORA: convert or merge the adapter with peft");
    for (const char* key :
         {"use_dora", "use_qalora", "use_bdlora", "lora_bias", "alora_invocation_tokens",
          "arrow_config", "corda_config", "lora_ga_config", "layer_replication", "layers_pattern",
          "target_parameters", "trainable_token_indices", "megatron_config", "kasa_config",
          "velora_config", "monteclora_config"}) {
      const bool off = !has(key) || json_[key] == false || json_[key].empty();
      VALIDATE(off, ExitCode::bad_data, file_, ": ", key, " = ", json_[key].dump(),
               " is not supported: merge the adapter with peft");
    }
    VALIDATE(!has("loftq_config") || json_["loftq_config"].empty(), ExitCode::bad_data, file_,
             ": loftq_config needs a quantised base, which is not supported: merge the adapter "
             "with peft");
    const std::string start = text("init_lora_weights");
    const bool keeps_base =
        start.empty() || start == "gaussian" || start == "eva" || start == "orthogonal";
    VALIDATE(keeps_base, ExitCode::bad_data, file_, ": init_lora_weights = \"", start,
             "\" changes the base's weights, which is not supported: convert the adapter with "
             "peft (path_initial_model_for_weight_conversion)");
  }

  std::string file_;
  Json json_;
};

}  // namespace

bool is_adapter(const fs::path& folder) {
  std::error_code error;
  return fs::exists(folder / adapter_config_name, error) &&
         !fs::exists(folder / "config.json", error);
}

Adapter load_adapter_config(const fs::path& folder) {
  const ConfigReader config(folder);
  Adapter out = config.adapter();
  out.base = config.text("base_model_name_or_path");
  return out;
}

bool is_adapter_on(const fs::path& folder, const std::string& base) {
  if (base.empty() || !is_adapter(folder)) return false;
  const std::string own = load_adapter_config(folder).base;
  return !own.empty() &&
         (config::same_folder(own, base) || config::same_folder((folder / own).string(), base));
}

AdapterFolder open_adapter(const fs::path& folder) {
  const ConfigReader config(folder);
  AdapterFolder out;
  out.path = folder;
  out.adapter = load_adapter_config(folder);
  out.score_head = config.text("task_type") == "SEQ_CLS";
  const fs::path file = folder / base::text(adapter_stem, ".safetensors");
  std::error_code error;
  VALIDATE(fs::exists(file, error), ExitCode::input_missing, "no adapter at ", folder.string(),
           " (no ", file.filename().string(),
           fs::exists(folder / "adapter_model.bin", error)
               ? " in it, but an adapter_model.bin): store it with peft's safe_serialization"
               : " in it): expected the adapter's weights beside its adapter_config.json");
  out.weights = std::make_shared<SafetensorsSource>(file);
  return out;
}

ModelSpec adapted(const ModelSpec& spec, const config::LoraOptions& lora, const std::string& base,
                  const std::string& key) {
  if (!lora.wanted()) return spec;
  const bool stored = !lora.path.empty();
  Adapter adapter = stored ? load_adapter_config(lora.path) : adapter_of(lora);
  adapter.base = base;
  if (spec.head == HeadKind::score && !stored) {  // peft: of SEQ_CLS
    const std::string head = module_of(spec.parameters[spec.head_parameter()].spec.name);
    if (std::ranges::count(adapter.modules_to_save, head) == 0)
      adapter.modules_to_save.push_back(head);
  }
  return with_adapter(spec, adapter, stored ? base::text(key, ".path = ", lora.path) : key);
}

namespace {

// The last parts of the names of what is adapted.
std::vector<std::string> adapted_modules(const ModelSpec& spec) {
  std::set<std::string> out;
  for (const Parameter& parameter : spec.parameters) {
    if (part_of(parameter.role) != Part::lora_a) continue;
    const std::string module = parameter.spec.name.substr(0, parameter.spec.name.find(".lora_"));
    out.insert(module.substr(module.rfind('.') + 1));
  }
  return {out.begin(), out.end()};
}

}  // namespace

std::string exported_adapter_name(const Parameter& parameter) {
  std::string name = parameter.file_tensor().name;
  if (part_of(parameter.role) == Part::saved) name.erase(name.find(saved_mark), saved_mark.size());
  return std::string(adapter_prefix) + name;
}

std::string adapter_config_json(const ModelSpec& spec) {
  const Adapter& adapter = *spec.adapter;
  // peft's own are whole numbers.
  const auto number = [](auto value) {
    const auto whole = static_cast<int64_t>(value);
    return static_cast<decltype(value)>(whole) == value ? Json(whole) : Json(value);
  };
  const auto list = [](const auto& values) { return values.empty() ? Json() : Json(values); };
  const auto object = [&](const auto& pairs) {
    Json out = Json::object();
    for (const auto& [key, value] : pairs) out[key] = number(value);
    return out;
  };
  Json out;
  out["peft_type"] = "LORA";
  out["task_type"] = spec.head == HeadKind::score ? "SEQ_CLS" : "CAUSAL_LM";
  out["base_model_name_or_path"] = adapter.base;
  out["inference_mode"] = true;
  out["r"] = adapter.rank;
  out["lora_alpha"] = number(adapter.alpha);
  out["use_rslora"] = adapter.rslora;
  out["lora_dropout"] = adapter.dropout;
  out["bias"] = adapter.bias;
  out["fan_in_fan_out"] = false;
  const bool all = std::ranges::count(adapter.targets, "all-linear") > 0;
  if (!adapter.target_pattern.empty()) {
    out["target_modules"] = adapter.target_pattern;
  } else {
    out["target_modules"] = all ? Json(adapted_modules(spec)) : Json(adapter.targets);
  }
  out["exclude_modules"] =
      adapter.excluded_pattern.empty() ? list(adapter.excluded) : Json(adapter.excluded_pattern);
  out["layers_to_transform"] = list(adapter.layers);
  out["layers_pattern"] = nullptr;
  out["rank_pattern"] = object(adapter.rank_pattern);
  out["alpha_pattern"] = object(adapter.alpha_pattern);
  out["modules_to_save"] = list(adapter.modules_to_save);
  out["init_lora_weights"] = true;
  out["use_dora"] = false;
  out["revision"] = nullptr;
  return out.dump(2) + "\n";
}

}  // namespace trireme::model
