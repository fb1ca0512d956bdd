#include "trireme/config/exported_config.hpp"

#include <optional>
#include <system_error>
#include <vector>

#include "config/json_edit.hpp"
#include "config/json_reader.hpp"

namespace trireme::config {
namespace {

// Keys that say what a classifier's numbers are.
constexpr const char* score_keys[] = {"num_labels",   "id2label", "label2id", "value_head_prefix",
                                      "problem_type", "mean",     "std"};

void set_head(JsonEdit& edit, const ModelShape& was, const ModelShape& shape) {
  if (was.score_head == shape.score_head && edit.has("architectures")) return;
  const auto made = Json::parse(to_config_json(shape));
  edit.set("architectures", made.at("architectures").dump());
  if (!shape.score_head) {
    for (const char* key : score_keys) edit.erase(key);
    return;
  }
  edit.set("num_labels", "1");
  if (edit.has("id2label")) edit.set("id2label", R"({"0": "LABEL_0"})");
  if (edit.has("label2id")) edit.set("label2id", R"({"LABEL_0": 0})");
  if (!edit.has("value_head_prefix"))
    edit.set("value_head_prefix", Json(shape.value_head_prefix).dump());
}

// Both names are in use: torch_dtype until transformers 4.55, dtype since.
void set_dtype(JsonEdit& edit, const ModelShape& was, const ModelShape& shape) {
  const bool either = edit.has("dtype") || edit.has("torch_dtype");
  if (either && was.dtype == shape.dtype) return;
  const std::string value = Json(shape.dtype).dump();
  if (edit.has("dtype")) edit.set("dtype", value);
  if (edit.has("torch_dtype") || !either) edit.set("torch_dtype", value);
}

void set_optional(JsonEdit& edit, const char* key, const std::optional<int32_t>& was,
                  const std::optional<int32_t>& value) {
  if (was != value && value) edit.set(key, Json(*value).dump());
}

void set_special_ids(JsonEdit& edit, const ModelShape& was, const ModelShape& shape) {
  set_optional(edit, "bos_token_id", was.bos_id, shape.bos_id);
  set_optional(edit, "pad_token_id", was.pad_id, shape.pad_id);
  if (was.pad_id && !shape.pad_id) edit.set("pad_token_id", "null");
  if (was.eos_ids == shape.eos_ids || shape.eos_ids.empty()) return;
  edit.set("eos_token_id", shape.eos_ids.size() == 1 ? Json(shape.eos_ids.front()).dump()
                                                     : Json(shape.eos_ids).dump());
}

void set_moment(JsonEdit& edit, const char* key, const std::optional<double>& was,
                const std::optional<double>& value) {
  if (was != value && value) edit.set(key, Json(*value).dump());
}

}  // namespace

std::filesystem::path config_file(const std::filesystem::path& folder_or_file) {
  std::error_code ignored;
  return std::filesystem::is_directory(folder_or_file, ignored) ? folder_or_file / "config.json"
                                                                : folder_or_file;
}

std::string exported_config_json(const std::string& whole, const ModelShape& shape) {
  if (whole.empty()) return to_config_json(shape);
  const std::string source = text_model_config(whole);
  const ModelShape was = parse_model_shape(source);
  JsonEdit edit(source);
  set_head(edit, was, shape);
  set_dtype(edit, was, shape);
  set_special_ids(edit, was, shape);
  edit.erase("quantization_config");  // exports have float weights
  if (!shape.score_head && was.tied != shape.tied)
    edit.set("tie_word_embeddings", shape.tied ? "true" : "false");
  if (shape.score_head) {
    set_moment(edit, "mean", was.score_mean, shape.score_mean);
    set_moment(edit, "std", was.score_std, shape.score_std);
  }
  return edit.text();
}

}  // namespace trireme::config
