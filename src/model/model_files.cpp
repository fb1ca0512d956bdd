#include "trireme/model/model_files.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "model/scaled_weights.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/log.hpp"
#include "trireme/config/exported_config.hpp"
#include "trireme/config/fp8_weights.hpp"
#include "trireme/model/adapter_files.hpp"
#include "trireme/model/gguf.hpp"

namespace trireme::model {
namespace fs = std::filesystem;

namespace {

constexpr const char* embedding_name = "model.embed_tokens.weight";
constexpr const char* head_name = "lm_head.weight";
constexpr const char* generation_name = "generation_config.json";
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
  return name == head_name && (spec.shape.tied || spec.head == HeadKind::score);
}

// A text model inside another model, or one that another program wrote, has something before its
// names ("language_model.", "module.", "_orig_mod."), or no "model.". Its tensors get the names
// that transformers gives the text model alone.
void remove_prefix(SafetensorsSource& weights) {
  if (weights.contains(embedding_name)) return;
  constexpr std::string_view embedding = "embed_tokens.weight";
  const std::vector<std::string> names = weights.names();
  std::vector<std::string> prefixes;
  for (const std::string& name : names) {
    if (!name.ends_with(embedding)) continue;
    prefixes.push_back(name.substr(0, name.size() - embedding.size()));
  }
  if (prefixes.size() != 1 || (!prefixes[0].empty() && prefixes[0].back() != '.')) return;
  for (const std::string& name : names) {
    if (!name.starts_with(prefixes[0])) continue;
    const std::string rest = name.substr(prefixes[0].size());
    const bool ours = rest == embedding || rest.starts_with("layers.") || rest.starts_with("norm.");
    if (ours) weights.rename(name, "model." + rest);
  }
  for (const std::string head : {head_name, "score.weight"}) {
    const auto ends = [&](const std::string& name) { return name.ends_with("." + head); };
    if (!weights.contains(head) && std::ranges::count_if(names, ends) == 1)
      weights.rename(*std::ranges::find_if(names, ends), head);
  }
}

// Embedding and head that config.json ties, as they are stored: the one under the other's name (a
// file of safetensors.torch.save_model), or twice. Where the two differ each keeps its own values,
// as in transformers.
void settle_tied_head(ModelFolder& folder, SafetensorsSource& weights) {
  if (!folder.shape.tied || !weights.contains(head_name)) return;
  if (!weights.contains(embedding_name)) {
    weights.rename(head_name, embedding_name);
  } else if (!weights.same_values(embedding_name, head_name)) {
    folder.shape.tied = false;
    folder.untied_by_weights = true;
  }
}

config::ModelShape exported_shape(const ModelSpec& spec, StoredType type) {
  config::ModelShape shape = spec.shape;
  shape.score_head = spec.head == HeadKind::score;
  shape.dtype = type == StoredType::bf16  ? "bfloat16"
                : type == StoredType::f16 ? "float16"
                                          : "float32";
  // transformers reads a score at the last token that is not padding, so with the end token as
  // padding it would read the token before it, which the model is not trained to be read at.
  const bool pads_with_end =
      shape.score_head && shape.pad_id && std::ranges::count(shape.eos_ids, *shape.pad_id) > 0;
  if (pads_with_end) shape.pad_id.reset();
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
  if (is_adapter(path)) return open_merged(path, base_folder(open_adapter(path)));
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
  const auto weights = std::make_shared<SafetensorsSource>(path);
  ModelFolder folder{path, std::move(shape), weights};
  remove_prefix(*weights);
  settle_tied_head(folder, *weights);
  folder.weights = with_scales(weights, config::load_fp8_weights(path));
  return folder;
}

config::ModelShape load_shape(const fs::path& path) {
  std::error_code error;
  if (is_adapter(path)) return open_model(path).shape;
  const bool is_config = fs::exists(path / "config.json", error) || path.extension() == ".json";
  return is_config ? config::load_model_shape(path) : open_model(path).shape;
}

config::ModelShape shape_with_weights(const fs::path& path) {
  config::ModelShape shape = load_shape(path);
  if (!shape.tied) return shape;
  try {
    return open_model(path).shape;
  } catch (const UserError&) { return shape; }  // for the run to say
}

std::vector<std::string> check_weights(const ModelSpec& spec, const WeightSource& weights,
                                       Missing allowed) {
  std::vector<std::string> missing;
  std::set<std::string, std::less<>> known;
  for (const Parameter& parameter : spec.parameters) {
    const base::TensorSpec& tensor = parameter.file_tensor();
    if (!known.insert(tensor.name).second) continue;
    if (!weights.contains(tensor.name)) {
      if (parameter.role != Role::score || allowed != Missing::score_head)
        missing.push_back(tensor.name);
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

namespace {

// One of the two may be older.
void warn_of_two_forms(const fs::path& folder) {
  std::error_code error;
  const bool both = fs::exists(folder / "model.safetensors", error) &&
                    fs::exists(folder / "model.safetensors.index.json", error);
  if (both)
    log::warning(base::text(folder.string(),
                            " has model.safetensors and model.safetensors.index.json: the first is "
                            "read, as in transformers (remove the one that is not meant)"));
}

}  // namespace

ModelSpec describe_and_check(const ModelFolder& folder, HeadKind head, Missing allowed) {
  ModelSpec spec = describe(folder.shape, head);
  warn_of_two_forms(folder.path);
  warn_unexpected(check_weights(spec, *folder.weights, allowed), *folder.weights);
  if (folder.untied_by_weights && head == HeadKind::language) {
    log::warning(
        base::text(folder.path.string(), ": tie_word_embeddings is true, but ", head_name, " and ",
                   embedding_name,
                   " have different values: the stored head is used, as in transformers "
                   "(set tie_word_embeddings to false to say that this is meant, or remove ",
                   head_name, ")"));
  }
  return spec;
}

void load_parameter(const ModelSpec& spec, size_t parameter, const base::Block& block,
                    const WeightSource& weights, uint64_t seed, float* out) {
  const Parameter& its = spec.parameters.at(parameter);
  const bool drawn = its.role == Role::score || part_of(its.role) != Part::base;
  if (drawn && !weights.contains(its.file_tensor().name)) {
    initial_values(spec, parameter, block, seed, out);
  } else {
    weights.read(its.file_tensor().name, its.in_file(block), out);
  }
}

bool copy_parameter(const Parameter& parameter, const base::Block& block,
                    const WeightSource& weights, StoredType type, std::byte* out) {
  return weights.copy(parameter.file_tensor().name, parameter.in_file(block), type, out);
}

namespace {

std::vector<std::string> exported_names(const ModelSpec& spec) {
  std::vector<std::string> out;
  for (const Parameter& parameter : spec.parameters) {
    const bool of_base = part_of(parameter.role) == Part::base;
    out.push_back(!spec.adapter ? parameter.file_tensor().name
                  : of_base     ? ""
                                : exported_adapter_name(parameter));
  }
  return out;
}

SafetensorsWriter writer_of(const fs::path& folder, const ModelSpec& spec,
                            const std::vector<std::string>& names,
                            const ModelExport::Options& options) {
  std::vector<base::TensorSpec> tensors;  // each once, in the order of the parameters
  std::set<std::string, std::less<>> seen;
  for (size_t p = 0; p < names.size(); ++p) {
    if (!names[p].empty() && seen.insert(names[p]).second)
      tensors.push_back({names[p], spec.parameters[p].file_tensor().shape});
  }
  if (!spec.adapter) return {folder, std::move(tensors), options.type, options.file_bytes};
  return {folder, std::move(tensors), StoredType::f32, ~uint64_t{0}, adapter_stem};
}

}  // namespace

ModelExport::ModelExport(fs::path folder, const ModelSpec& spec, Options options)
    : folder_(std::move(folder)),
      shape_(exported_shape(spec, options.type)),
      parameters_(spec.parameters),
      adapter_config_(spec.adapter ? adapter_config_json(spec) : ""),
      names_(exported_names(spec)),
      options_(std::move(options)),
      writer_(writer_of(folder_, spec, names_, options_)) {}

void ModelExport::create() { writer_.create(); }

void ModelExport::write(size_t parameter, const base::Block& block, const float* values) {
  writer_.write(names_.at(parameter), parameters_.at(parameter).in_file(block), values);
}

void ModelExport::sync() { writer_.sync(); }

void ModelExport::write_config() const {
  if (!adapter_config_.empty())
    return base::write_file_atomically(folder_ / adapter_config_name, adapter_config_);
  static const KeptFiles none;
  const KeptFiles& kept = options_.kept ? *options_.kept : none;
  base::write_file_atomically(folder_ / "config.json",
                              config::exported_config_json(kept.config(), shape_));
  if (!shape_.score_head && !kept.has(generation_name))
    base::write_file_atomically(folder_ / generation_name, generation_config(shape_));
  kept.write(folder_);
}

void ModelExport::commit() {
  writer_.retire_older();
  write_config();
  writer_.commit();
}

}  // namespace trireme::model
