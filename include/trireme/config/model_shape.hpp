// The shape of a model, from Hugging Face's config.json and back. Supported: dense Llama-like
// decoders, the architectures' ...ForCausalLM and ...ForSequenceClassification with one label; all
// else is refused by name. Legend: V vocabulary, D hidden, L layers, H
// query heads, K key/value heads, h head_dim, F ffn.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/config/architectures.hpp"
#include "trireme/config/choices.hpp"

namespace trireme::config {

enum class RopeKind { plain, linear, llama3, yarn, dynamic, longrope };
template <>
struct Words<RopeKind> {
  static constexpr std::string_view list[] = {"default", "linear",  "llama3",
                                              "yarn",    "dynamic", "longrope"};
};

// How the frequencies of rotary embeddings are changed; each kind as in transformers
// (modeling_rope_utils.py). linear divides every position by `factor`; llama3 and yarn scale low
// frequencies only; dynamic and longrope depend on the length of the sequence.
struct RopeScaling {
  RopeKind kind = RopeKind::plain;
  double factor = 1;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int64_t original_max_positions = 0;  // dynamic: max_position_embeddings
  double attention_factor = 1;         // of cos and sin
  double beta_fast = 32, beta_slow = 1;
  bool truncate = true;
  std::vector<double> short_factor = {}, long_factor = {};
  bool operator==(const RopeScaling&) const = default;

  bool by_length() const { return kind == RopeKind::dynamic || kind == RopeKind::longrope; }
};

// The rotation of layers with a window, where it is another one.
struct LocalRope {
  double theta = 10000;
  RopeScaling scaling;
  bool operator==(const LocalRope&) const = default;
};

// Queries are multiplied by 1 + beta * log(1 + floor(position / period)).
struct PositionScale {
  double beta = 0;
  int64_t period = 1;
  bool operator==(const PositionScale&) const = default;
};

// Factors of what is added to the residual stream, of scores and of logits.
struct Multipliers {
  double embedding = 1;
  double residual = 1;
  double logits = 1;                // 1 / logits_scaling
  std::optional<double> attention;  // else 1 / sqrt(head size)
  bool sqrt_embedding = false;      // `embedding` is sqrt(hidden), in the type of the weights
  bool operator==(const Multipliers&) const = default;
};

struct ModelShape {
  Architecture architecture = Architecture::llama;
  int64_t vocab = 0;
  int64_t hidden = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t ffn = 0;
  double norm_eps = 1e-6;
  double rope_theta = 10000;
  RopeScaling rope_scaling;
  Multipliers multipliers;
  std::vector<bool> without_rope;  // by layer; empty: all are rotated
  int64_t window = 0;              // tokens that a layer with a window sees, the query's included
  std::vector<bool> windowed;      // by layer; empty: none
  int64_t rotary_dims = 0;         // elements of a head that are rotated; 0: all
  std::optional<LocalRope> local_rope;
  std::optional<PositionScale> position_scale;
  double attention_cap = 0;  // of scores: cap * tanh(score / cap); 0: none
  double logit_cap = 0;
  bool tied = false;  // the head is the embedding
  bool qkv_bias = false;
  bool o_bias = false;
  bool mlp_bias = false;
  int64_t max_positions = 2048;
  std::optional<int32_t> bos_id;
  std::vector<int32_t> eos_ids;  // config.json may give one, several or none
  std::optional<int32_t> pad_id;
  std::string dtype = "float32";  // of the stored weights: float32, bfloat16 or float16
  bool score_head =
      false;  // [1, D] `score.weight` instead of a language-model head: reward model, critic
  std::optional<double> score_mean;  // statistics for reward normalisation (F5)
  std::optional<double> score_std;
  std::string value_head_prefix = "score";
  double initializer_range = 0.02;

  int64_t q_dim() const { return heads * head_dim; }
  int64_t kv_dim() const { return kv_heads * head_dim; }
  // The longest sequence. With dynamic scaling max_position_embeddings is where theta begins to
  // grow.
  int64_t longest() const {
    return rope_scaling.kind == RopeKind::dynamic
               ? static_cast<int64_t>(static_cast<double>(max_positions) * rope_scaling.factor)
               : max_positions;
  }
  bool has_window(int64_t layer) const {
    return !windowed.empty() && windowed[static_cast<size_t>(layer)];
  }
  // 0: the layer sees everything, as with a window that no sequence fills.
  int64_t window_of(int64_t layer) const {
    return has_window(layer) && window < longest() ? window : 0;
  }
  bool operator==(const ModelShape&) const = default;
};

// `text` of a config.json; `name` stands for the file in messages. UserError(bad_data) naming the
// key: malformed JSON, missing or impossible values, an architecture or feature that is not
// supported.
ModelShape parse_model_shape(std::string_view text, std::string_view name = "config.json");

// The text of a config.json, or of the text model alone where it describes one that also sees
// images.
std::string text_model_config(const std::string& text);

// Reads `folder_or_file` (a folder is searched for config.json). UserError input_missing,
// permission, bad_data.
ModelShape load_model_shape(const std::filesystem::path& folder_or_file);

// A config.json that Hugging Face transformers (4.x and 5.x) loads to the same model.
std::string to_config_json(const ModelShape& shape);

// "llama, 32 layers, hidden 4096, 32/8 heads of 128, ffn 14336, vocabulary 128256, 8.03 B
// parameters"; `parameters`: elements of all weights.
std::string describe(const ModelShape& shape, int64_t parameters);

}  // namespace trireme::config
