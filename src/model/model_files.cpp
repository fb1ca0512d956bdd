#include "trireme/model/model_files.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/log.hpp"
#include "trireme/model/gguf.hpp"

namespace trireme::model {
namespace fs = std::filesystem;

namespace {

constexpr const char* tokenizer_files[] = {"tokenizer.json",
                                           "tokenizer_config.json",
                                           "special_tokens_map.json",
                                           "added_tokens.json",
                                           "vocab.json",
                                           "merges.txt",
                                           "tokenizer.model",
                                           "chat_template.jinja"};
constexpr size_t shown_names = 5;

// "a, b, c and 17 more"
std::string some_of(std::span<const std::string> names) {
  const size_t shown = std::min(names.size(), shown_names);
  const std::string list = base::join(names.first(shown));
  return shown == names.size() ? list : base::text(list, " and ", names.size() - shown, " more");
}

ModelFolder open_gguf(const fs::path& path, const fs::path& file) {
  auto source = std::make_shared<GgufFile>(file);
  config::ModelShape shape = source->shape();
  return {path, std::move(shape), std::move(source)};
}

std::vector<fs::path> gguf_files(const fs::path& folder) {
  std::vector<fs::path> out;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".gguf") out.push_back(entry.path());
  }
  std::sort(out.begin(), out.end());
  return out;
}

bool is_harmless(const std::string& name, const ModelSpec& spec) {
  if (name.ends_with("rotary_emb.inv_freq")) return true;
  return name == "lm_head.weight" && (spec.shape.tied || spec.head == HeadKind::score);
}

config::ModelShape exported_shape(const ModelSpec& spec, StoredType type) {
  config::ModelShape shape = spec.shape;
  shape.score_head = spec.head == HeadKind::score;
  shape.dtype = type == StoredType::bf16  ? "bfloat16"
                : type == StoredType::f16 ? "float16"
                                          : "float32";
  return shape;
}

std::string generation_config(const config::ModelShape& shape) {
  nlohmann::ordered_json out;
  out["_from_model_config"] = true;
  if (shape.bos_id) out["bos_token_id"] = *shape.bos_id;
  if (shape.eos_ids.size() == 1) {
    out["eos_token_id"] = shape.eos_ids.front();
  } else if (!shape.eos_ids.empty()) {
    out["eos_token_id"] = shape.eos_ids;
  }
  if (shape.pad_id) out["pad_token_id"] = *shape.pad_id;
  return out.dump(2) + "\n";
}

}  // namespace

ModelFolder open_model(const fs::path& path) {
  std::error_code error;
  if (path.extension() == ".gguf" && !fs::is_directory(path, error)) return open_gguf(path, path);
  const bool has_config = fs::exists(path / "config.json", error);
  if (!has_config && fs::is_directory(path, error)) {
    const auto files = gguf_files(path);
    VALIDATE(files.size() <= 1, ExitCode::bad_data, path.string(), " has ", files.size(),
             " GGUF files: give the path of the one to use");
    if (files.size() == 1) return open_gguf(path, files.front());
  }
  VALIDATE(has_config, ExitCode::input_missing, "no model at ", path.string(),
           fs::exists(path, error) ? " (no config.json in it)" : " (no such folder)",
           ": expected a folder with config.json and model.safetensors, as Hugging Face stores "
           "models, or a .gguf file");
  config::ModelShape shape = config::load_model_shape(path);
  return {path, std::move(shape), std::make_shared<SafetensorsSource>(path)};
}

std::vector<std::string> check_weights(const ModelSpec& spec, const WeightSource& weights,
                                       Missing allowed) {
  std::vector<std::string> missing;
  std::set<std::string, std::less<>> known;
  for (const auto& [tensor, role] : spec.parameters) {
    known.insert(tensor.name);
    if (!weights.contains(tensor.name)) {
      if (role != Role::score || allowed != Missing::score_head) missing.push_back(tensor.name);
      continue;
    }
    const auto& found = weights.spec(tensor.name);
    VALIDATE(found.shape == tensor.shape, ExitCode::bad_data, weights.describe(), ": '",
             tensor.name, "' has the shape ", base::shape_text(found.shape),
             ", but config.json asks for ", base::shape_text(tensor.shape),
             ": weights and config.json do not belong together");
  }
  VALIDATE(missing.empty(), ExitCode::bad_data, weights.describe(), " has no ", some_of(missing),
           ", which the model of its config.json needs");
  std::vector<std::string> unexpected;
  for (auto& name : weights.names()) {
    if (!known.contains(name) && !is_harmless(name, spec)) unexpected.push_back(std::move(name));
  }
  return unexpected;
}

void warn_unexpected(const std::vector<std::string>& names, const WeightSource& weights) {
  if (names.empty()) return;
  log::warning(base::text(weights.describe(), ": ", names.size(),
                          " tensors are not part of the model and are left out: ", some_of(names)));
}

void load_parameter(const ModelSpec& spec, size_t parameter, const base::Block& block,
                    const WeightSource& weights, uint64_t seed, float* out) {
  const auto& [tensor, role] = spec.parameters.at(parameter);
  if (role == Role::score && !weights.contains(tensor.name)) {
    initial_values(spec, parameter, block, seed, out);
  } else {
    weights.read(tensor.name, block, out);
  }
}

ModelExport::ModelExport(fs::path folder, const ModelSpec& spec, Options options)
    : folder_(std::move(folder)),
      shape_(exported_shape(spec, options.type)),
      tensors_(spec.tensors()),
      options_(std::move(options)),
      writer_(folder_, tensors_, options_.type, options_.file_bytes) {}

void ModelExport::create() { writer_.create(); }

void ModelExport::write(size_t parameter, const base::Block& block, const float* values) {
  writer_.write(tensors_.at(parameter).name, block, values);
}

void ModelExport::sync() { writer_.sync(); }

void ModelExport::commit() {
  writer_.retire_older();
  base::write_file_atomically(folder_ / "config.json", config::to_config_json(shape_));
  if (!shape_.score_head)
    base::write_file_atomically(folder_ / "generation_config.json", generation_config(shape_));
  if (!options_.tokenizer_from.empty()) {
    for (const char* name : tokenizer_files) {
      const fs::path from = options_.tokenizer_from / name;
      std::error_code error;
      if (fs::is_regular_file(from, error))
        base::write_file_atomically(folder_ / name, base::read_file(from));
    }
  }
  writer_.commit();
}

}  // namespace trireme::model
