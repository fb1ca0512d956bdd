// A model on disk: its shape, its weights, and the way back to a Hugging Face folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "trireme/base/shard_layout.hpp"
#include "trireme/config/model_shape.hpp"
#include "trireme/model/kept_files.hpp"
#include "trireme/model/safetensors.hpp"
#include "trireme/model/spec.hpp"
#include "trireme/model/weight_source.hpp"

namespace trireme::model {

struct ModelFolder {
  std::filesystem::path path;
  config::ModelShape shape;
  std::shared_ptr<const WeightSource> weights;
  // config.json ties the head to the embedding, but the files have two that differ: shape.tied is
  // false then.
  bool untied_by_weights = false;
};

// `path`: a folder with config.json and safetensors, a folder with one .gguf file and no
// config.json, a .gguf file, or the folder of an adapter, which is merged with its base as it is
// read. Not collective; every rank may open it. UserError input_missing
// naming path and what was expected, bad_data.
ModelFolder open_model(const std::filesystem::path& path);

// The shape alone: of a config.json, or of its folder, without a look at the weights; of a GGUF
// file as open_model().
config::ModelShape load_shape(const std::filesystem::path& path);

// The shape that a run of this model has: load_shape(), and not tied where the weights have a head
// of its own (ModelFolder::untied_by_weights). Weights that are not here, or cannot be read, change
// nothing.
config::ModelShape shape_with_weights(const std::filesystem::path& path);

// Tensors that a model may lack.
enum class Missing : uint8_t {
  nothing,
  score_head  // a critic that starts from a language model: its head is drawn anew
};

// Compares the source with the spec: every parameter must be there with its shape (bad_data names
// the tensor and both shapes, or the tensors that are missing). Tensors that the spec does not have
// are returned, without the harmless ones (rotary inv_freq buffers, lm_head.weight of a tied model
// or beside a score head).
std::vector<std::string> check_weights(const ModelSpec& spec, const WeightSource& weights,
                                       Missing allowed = Missing::nothing);
// One warning for the tensors that check_weights returned; nothing for an empty list.
void warn_unexpected(const std::vector<std::string>& names, const WeightSource& weights);

// describe() and check_weights() of a folder, with warnings for what is left out and for a head of
// its own in spite of tie_word_embeddings.
ModelSpec describe_and_check(const ModelFolder& folder, HeadKind head,
                             Missing allowed = Missing::nothing);

// Rows and columns [block] of a parameter as fp32 into out[block.elements()]: from the source, or
// drawn by initial_values with `seed` when the source does not have it (a score head, see Missing).
void load_parameter(const ModelSpec& spec, size_t parameter, const base::Block& block,
                    const WeightSource& weights, uint64_t seed, float* out);

// Elements of a parameter as they are stored, where that is `type`; else false
// (WeightSource::copy).
bool copy_parameter(const Parameter& parameter, const base::Block& block,
                    const WeightSource& weights, StoredType type, std::byte* out);

// Writes a folder that Hugging Face's from_pretrained opens: the small files of the folder that the
// model came from, config.json with what training changed, and safetensors whose slices every rank
// writes itself. Of a model with an adapter the folder that peft opens: the adapter alone, in fp32.
// The order of calls and barriers is that of SafetensorsWriter; nothing is
// collective.
class ModelExport {
 public:
  struct Options {
    StoredType type = StoredType::bf16;  // bf16, f32 or f16
    uint64_t file_bytes = SafetensorsWriter::default_file_bytes;
    // Of the model's folder; null: config.json and generation_config.json are made from the shape.
    // Needed where commit() is called.
    std::shared_ptr<const KeptFiles> kept;
  };
  ModelExport(std::filesystem::path folder, const ModelSpec& spec, Options options);

  bool has(size_t parameter) const { return !names_[parameter].empty(); }
  void create();  // on one rank
  void write(size_t parameter, const base::Block& block, const float* values);
  void sync();    // on every rank
  void commit();  // on one rank
  // After an error, on one rank: half an export would keep the space that may be what is missing.
  void discard() noexcept { writer_.discard(); }

 private:
  void write_config() const;

  std::filesystem::path folder_;
  config::ModelShape shape_;
  std::vector<Parameter> parameters_;
  std::string adapter_config_;      // empty: a whole model
  std::vector<std::string> names_;  // [parameters] in the files; empty: not there
  Options options_;
  SafetensorsWriter writer_;
};

}  // namespace trireme::model
