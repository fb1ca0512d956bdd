// From the metadata of a GGUF file to a model's shape, its tokenizer and Hugging Face's names.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <optional>
#include <utility>

#include "gguf_parser.hpp"
#include "parameter_table.hpp"
#include "trireme/base/error.hpp"

namespace trireme::model {
namespace {

// Typed look-ups; a value of another type than expected is bad data.
class Metadata {
 public:
  Metadata(const GgufHeader& header, const std::string& file)
      : values_(header.metadata), file_(file) {}

  template <class T>
  const T* find(const std::string& key) const {
    const auto found = values_.find(key);
    if (found == values_.end()) return nullptr;
    const T* value = std::get_if<T>(&found->second);
    VALIDATE(value, ExitCode::bad_data, file_, ": the metadata key ", key,
             " has an unexpected type");
    return value;
  }
  template <class T>
  T get(const std::string& key, T fallback) const {
    const T* value = find<T>(key);
    return value ? *value : fallback;
  }
  template <class T>
  T require(const std::string& key) const {
    const T* value = find<T>(key);
    VALIDATE(value, ExitCode::bad_data, file_, ": the metadata key ", key, " is missing");
    return *value;
  }
  // A number of layers, heads, elements: 1 ... limit. Without a fallback the key must be there.
  int64_t size(const std::string& key, int64_t limit,
               std::optional<int64_t> fallback = std::nullopt) const {
    const int64_t value = fallback ? get<int64_t>(key, *fallback) : require<int64_t>(key);
    VALIDATE(value >= 1 && value <= limit, ExitCode::bad_data, file_, ": the metadata key ", key,
             " is ", value, " (1 ... ", limit,
             " is possible): the file is damaged or not what it claims to be");
    return value;
  }
  // JSON, by which the shape is checked, has no other numbers: it would take NaN for a key that is
  // absent.
  double positive(const std::string& key, std::optional<double> fallback = std::nullopt) const {
    const double value = fallback ? get<double>(key, *fallback) : require<double>(key);
    VALIDATE(std::isfinite(value) && value > 0, ExitCode::bad_data, file_, ": the metadata key ",
             key, " is ", value,
             " (a positive number is needed): the file is damaged or not what it claims to be");
    return value;
  }
  std::optional<int32_t> id(const std::string& key) const {
    const auto* value = find<int64_t>(key);
    VALIDATE(!value || (*value >= 0 && *value <= INT32_MAX), ExitCode::bad_data, file_,
             ": the metadata key ", key, " is ", *value,
             ", which is no token id: the file is damaged or not what it claims to be");
    return value ? std::optional(static_cast<int32_t>(*value)) : std::nullopt;
  }
  std::optional<bool> flag(const std::string& key) const {
    const auto* value = find<bool>(key);
    return value ? std::optional(*value) : std::nullopt;
  }

 private:
  const std::map<std::string, GgufValue, std::less<>>& values_;
  const std::string& file_;
};

const GgufTensorInfo* find_tensor(const GgufHeader& header, std::string_view name) {
  const auto found = std::find_if(header.tensors.begin(), header.tensors.end(),
                                  [name](const auto& tensor) { return tensor.name == name; });
  return found == header.tensors.end() ? nullptr : &*found;
}

const config::ArchitectureTraits& architecture_of(const Metadata& metadata,
                                                  const std::string& file) {
  const auto name = metadata.require<std::string>("general.architecture");
  std::vector<std::string> names;
  for (const auto& known : config::architecture_table) {
    if (known.gguf.empty()) continue;
    if (known.gguf == name) return known;
    names.emplace_back(known.gguf);
  }
  throw UserError(ExitCode::bad_data,
                  base::text(file, ": the architecture '", name,
                             "' is not supported (supported: ", base::join(names), ")"));
}

void refuse_unsupported(const Metadata& metadata, const std::string& prefix,
                        const std::string& file) {
  VALIDATE(metadata.get<int64_t>(prefix + "expert_count", 0) == 0, ExitCode::bad_data, file,
           ": mixture-of-experts models are not supported");
  VALIDATE(metadata.get<int64_t>("split.count", 1) <= 1, ExitCode::bad_data, file,
           ": a part of a split model: merge the parts first (llama-gguf-split --merge)");
  VALIDATE(metadata.get<int64_t>(prefix + "attention.sliding_window", 0) == 0, ExitCode::bad_data,
           file, ": sliding-window attention is not supported");
}

// llama.cpp divides the frequencies by a tensor of factors; it writes llama3's scaling that way and
// drops the parameters. They are recovered here: the factor is the largest entry, the rest are the
// values of all published Llama 3 models.
config::RopeScaling scaling_from_factors(const GgufTensorInfo& tensor,
                                         std::span<const std::byte> bytes,
                                         const config::ModelShape& shape, const std::string& file) {
  VALIDATE(tensor.shape == std::vector<int64_t>{shape.head_dim / 2} &&
               gguf_type_name(tensor.type) == "F32",
           ExitCode::bad_data, file, ": rope_freqs.weight is not F32 [", shape.head_dim / 2, "]");
  std::vector<float> factors(static_cast<size_t>(shape.head_dim / 2));
  dequantise(tensor.type, bytes.data() + tensor.begin, factors.size(), factors.data());
  const double largest = *std::max_element(factors.begin(), factors.end());
  const bool whole = std::abs(largest - std::round(largest)) < 1e-3;  // fp32 noise around 8 or 32
  config::RopeScaling scaling{config::RopeKind::llama3, whole ? std::round(largest) : largest, 1, 4,
                              8192};
  bool fits = true;
  for (size_t i = 0; i < factors.size(); ++i) {
    const double frequency = std::pow(
        shape.rope_theta, -2.0 * static_cast<double>(i) / static_cast<double>(shape.head_dim));
    const double turns =
        8192 * frequency / (2 * std::numbers::pi);  // of this frequency in the original context
    double expected = turns > 4 ? 1 : scaling.factor;
    if (turns >= 1 && turns <= 4)
      expected = 1 / ((1 - (turns - 1) / 3) / scaling.factor + (turns - 1) / 3);
    fits = fits && std::abs(factors[i] - expected) <= 1e-3 * expected;
  }
  VALIDATE(
      fits, ExitCode::bad_data, file,
      ": rope_freqs.weight is not the scaling of the Llama 3 models, and GGUF does not keep its ",
      "parameters: use the safetensors form of this model");
  return scaling;
}

config::RopeScaling rope_scaling(const GgufHeader& header, std::span<const std::byte> bytes,
                                 const Metadata& metadata, const std::string& prefix,
                                 const config::ModelShape& shape, const std::string& file) {
  const auto kind = metadata.get<std::string>(prefix + "rope.scaling.type", "none");
  const auto* factors = find_tensor(header, "rope_freqs.weight");
  VALIDATE(kind == "none" || kind == "linear", ExitCode::bad_data, file, ": rope scaling '", kind,
           "' is not supported");
  if (kind == "linear") {
    VALIDATE(!factors, ExitCode::bad_data, file,
             ": linear rope scaling together with rope_freqs.weight is not supported");
    return {config::RopeKind::linear, metadata.positive(prefix + "rope.scaling.factor")};
  }
  return factors ? scaling_from_factors(*factors, bytes, shape, file) : config::RopeScaling{};
}

// Checked before anything is computed from them; the limits are those of config.json, under GGUF's
// names.
void read_sizes(const Metadata& metadata, const std::string& prefix, config::ModelShape& shape,
                const std::string& file) {
  shape.hidden = metadata.size(prefix + "embedding_length", 1 << 20);
  shape.layers = metadata.size(prefix + "block_count", 1 << 14);
  shape.ffn = metadata.size(prefix + "feed_forward_length", 1 << 22);
  shape.heads = metadata.size(prefix + "attention.head_count", 1 << 14);
  shape.kv_heads = metadata.size(prefix + "attention.head_count_kv", 1 << 14, shape.heads);
  const std::string key = prefix + "attention.key_length";
  VALIDATE(metadata.find<int64_t>(key) || shape.hidden % shape.heads == 0, ExitCode::bad_data, file,
           ": ", prefix, "embedding_length ", shape.hidden, " is not a multiple of ", prefix,
           "attention.head_count ", shape.heads, " and ", key, " is not given");
  shape.head_dim = metadata.size(key, 1 << 14, shape.hidden / shape.heads);
  VALIDATE(shape.head_dim % 2 == 0, ExitCode::bad_data, file, ": heads of ", shape.head_dim,
           " elements (", key, "): rotary embeddings turn pairs of elements");
}

void add_token_ids(config::ModelShape& shape, const Metadata& metadata) {
  shape.bos_id = metadata.id("tokenizer.ggml.bos_token_id");
  shape.pad_id = metadata.id("tokenizer.ggml.padding_token_id");
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"}) {
    const auto id = metadata.id(key);
    if (id && std::find(shape.eos_ids.begin(), shape.eos_ids.end(), *id) == shape.eos_ids.end())
      shape.eos_ids.push_back(*id);
  }
}

}  // namespace

config::ModelShape gguf_shape(const GgufHeader& header, std::span<const std::byte> bytes,
                              const std::string& file) {
  const Metadata metadata(header, file);
  const config::ArchitectureTraits& known = architecture_of(metadata, file);
  const std::string prefix = std::string(known.gguf) + ".";
  refuse_unsupported(metadata, prefix, file);

  config::ModelShape shape;
  shape.architecture = known.architecture;
  read_sizes(metadata, prefix, shape, file);
  VALIDATE(metadata.get<int64_t>(prefix + "rope.dimension_count", shape.head_dim) == shape.head_dim,
           ExitCode::bad_data, file, ": a rotary embedding of part of the head is not supported");
  const auto* embedding = find_tensor(header, "token_embd.weight");
  VALIDATE(embedding && embedding->shape.size() == 2, ExitCode::bad_data, file,
           ": there is no matrix token_embd.weight");
  shape.vocab = embedding->shape[0];
  VALIDATE(embedding->shape[0] <= INT32_MAX, ExitCode::bad_data, file, ": token_embd.weight has ",
           embedding->shape[0], " rows");
  shape.norm_eps = metadata.positive(prefix + "attention.layer_norm_rms_epsilon");
  shape.rope_theta = metadata.positive(prefix + "rope.freq_base", 10000.0);
  shape.rope_scaling = rope_scaling(header, bytes, metadata, prefix, shape, file);
  shape.tied = find_tensor(header, "output.weight") == nullptr;
  shape.qkv_bias = find_tensor(header, "blk.0.attn_q.bias") != nullptr;
  shape.o_bias = find_tensor(header, "blk.0.attn_output.bias") != nullptr;
  shape.max_positions = metadata.size(prefix + "context_length", INT32_MAX);
  shape.dtype = "float32";
  add_token_ids(shape, metadata);
  // The same checks as for a config.json.
  return config::parse_model_shape(config::to_config_json(shape), file);
}

GgufTokenizer gguf_tokenizer(const GgufHeader& header, const std::string& file) {
  const Metadata metadata(header, file);
  const std::string prefix = "tokenizer.ggml.";
  GgufTokenizer out;
  out.model = metadata.get<std::string>(prefix + "model", "");
  out.pre = metadata.get<std::string>(prefix + "pre", "");
  out.tokens = metadata.get<std::vector<std::string>>(prefix + "tokens", {});
  out.merges = metadata.get<std::vector<std::string>>(prefix + "merges", {});
  for (const int64_t type : metadata.get<std::vector<int64_t>>(prefix + "token_type", {})) {
    VALIDATE(std::in_range<int32_t>(type), ExitCode::bad_data, file, ": the metadata key ", prefix,
             "token_type holds ", type);
    out.types.push_back(static_cast<int32_t>(type));
  }
  for (const double score : metadata.get<std::vector<double>>(prefix + "scores", {}))
    out.scores.push_back(static_cast<float>(score));
  VALIDATE(out.types.empty() || out.types.size() == out.tokens.size(), ExitCode::bad_data, file,
           ": ", out.types.size(), " token types for ", out.tokens.size(), " tokens");
  out.bos = metadata.id(prefix + "bos_token_id");
  out.eos = metadata.id(prefix + "eos_token_id");
  out.pad = metadata.id(prefix + "padding_token_id");
  out.unknown = metadata.id(prefix + "unknown_token_id");
  for (const auto& id : {out.bos, out.eos, out.pad, out.unknown}) {
    VALIDATE(!id || (*id >= 0 && std::cmp_less(*id, out.tokens.size())), ExitCode::bad_data, file,
             ": the special token ", id.value_or(0), " is not one of the ", out.tokens.size(),
             " tokens");
  }
  out.add_bos = metadata.flag(prefix + "add_bos_token");
  out.add_eos = metadata.flag(prefix + "add_eos_token");
  out.add_space_prefix = metadata.flag(prefix + "add_space_prefix");
  out.chat_template = metadata.get<std::string>("tokenizer.chat_template", "");
  return out;
}

std::string hugging_face_name(const std::string& name) {
  int layer = -1;
  std::string_view rest = name;
  if (rest.starts_with("blk.")) {
    const size_t dot = rest.find('.', 4);
    const char* end = name.data() + std::min(dot, name.size());
    if (std::from_chars(name.data() + 4, end, layer).ptr != end || layer < 0) return name;
    rest.remove_prefix(std::min(dot + 1, rest.size()));
  }
  for (const ParameterKind& kind : parameter_kinds()) {
    if (!kind.gguf.empty() && kind.gguf == rest) return name_prefix(layer) + std::string(kind.name);
  }
  return name;
}

}  // namespace trireme::model
