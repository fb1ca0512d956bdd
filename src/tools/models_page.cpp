// docs/user/models.md, made of the tables by which models and tokenizers are read.
#include "trireme/tools/models_page.hpp"

#include <algorithm>
#include <iterator>
#include <variant>
#include <vector>

#include "trireme/base/error.hpp"
#include "trireme/base/text.hpp"
#include "trireme/config/architectures.hpp"
#include "trireme/config/checkpoints.hpp"
#include "trireme/config/model_shape.hpp"
#include "trireme/config/refused_keys.hpp"
#include "trireme/model/gguf.hpp"
#include "trireme/model/spec.hpp"
#include "trireme/text/tokenizer_parts.hpp"

namespace trireme::tools {
namespace {

using Words = std::vector<std::string>;
using config::ArchitectureTraits;

// A model of the family as its config.json says with sizes alone.
model::ModelSpec usual_model(const ArchitectureTraits& family) {
  return model::describe(
      config::parse_model_shape(base::text(R"({"architectures": [")", family.class_prefix,
                                           R"(ForCausalLM"], "hidden_size": 64,
            "num_hidden_layers": 12, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_dim": 16, "intermediate_size": 96, "vocab_size": 300,
            "max_position_embeddings": 131072})")),
      model::HeadKind::language);
}

template <class T>
Words words_of() {
  return Words(std::begin(config::Words<T>::list), std::end(config::Words<T>::list));
}

// Norms of a block by where they are: of the stream or of what a part adds to it, and of q and k.
struct Norms {
  int before = 0, after = 0;
  bool of_heads = false, of_rows_of_heads = false;
  model::NormKind kind = model::NormKind::rms;
};
Norms norms_of(const model::Stage& block) {
  Norms out;
  for (const model::Operation& operation : block.operations) {
    const auto* norm = std::get_if<model::Norm>(&operation);
    if (norm == nullptr) continue;
    if (norm->in == norm->out) {
      (norm->head_dim > 0 ? out.of_heads : out.of_rows_of_heads) = true;
      continue;
    }
    ++(norm->in == model::residual ? out.before : out.after);
    out.kind = norm->kind;
  }
  return out;
}

void add_norms(const model::Stage& block, Words& words) {
  const Norms norms = norms_of(block);
  const std::string_view name = norms.kind == model::NormKind::rms          ? "RMS norms"
                                : norms.kind == model::NormKind::rms_offset ? "RMS norms with 1 + w"
                                                                            : "centred norms";
  words.push_back(base::text(name,
                             norms.after == 0    ? " before"
                             : norms.before == 0 ? " after"
                                                 : " before and after",
                             norms.before + norms.after == 1
                                 ? " attention and the feed-forward part, which are parallel"
                                 : " attention and the feed-forward part"));
  if (norms.of_heads) words.push_back("norms of each head of q and k");
  if (norms.of_rows_of_heads) words.push_back("norms of q and k as whole rows");
}

void add_activation(const model::Stage& block, Words& words) {
  for (const model::Operation& operation : block.operations) {
    if (const auto* gate = std::get_if<model::Gate>(&operation))
      words.push_back(gate->kind == model::GateKind::silu ? "SwiGLU" : "GeGLU");
    if (std::holds_alternative<model::Activate>(operation)) words.push_back("xIELU without a gate");
  }
}

std::string block_of(const ArchitectureTraits& family, const model::ModelSpec& spec) {
  const model::Stage& block = spec.stages[1];
  Words words;
  add_norms(block, words);
  add_activation(block, words);
  if (family.biases == config::AttentionBiases::qkv) words.push_back("biases of q, k, v");
  if (family.biases == config::AttentionBiases::by_key) words.push_back("`attention_bias`");
  if (family.biases == config::AttentionBiases::qkv_by_key)
    words.push_back("`attention_bias` of q, k, v");
  if (family.mlp_bias_key) words.push_back("`mlp_bias`");
  if (family.multipliers) words.push_back("multipliers of embedding, attention, residual, logits");
  if (family.logit_scale > 0) words.push_back("`logit_scale`");
  if (family.scaled_embedding) words.push_back("embedding scaled by the root of its width");
  if (family.attention_cap > 0) words.push_back("soft caps of scores and logits");
  if (family.position_scale) words.push_back("queries scaled by their position");
  return base::join(words);
}

std::string rotation_of(const ArchitectureTraits& family, const model::ModelSpec& spec) {
  Words words;
  if (family.rotated_share > 0)
    words.push_back(family.rotated_share < 1 ? "part of each head" : "`partial_rotary_factor`");
  const auto neighbours = [](const model::Operation& operation) {
    const auto* rotate = std::get_if<model::Rotate>(&operation);
    return rotate != nullptr && rotate->interleaved;
  };
  if (std::ranges::any_of(spec.stages[1].operations, neighbours))
    words.push_back("neighbours in pairs");
  if (spec.rotations.size() > 1) words.push_back("another one in layers with a window");
  if (family.layers_without_rope) words.push_back("none in layers of `no_rope_layers`");
  if (family.rope_in_windows_only) words.push_back("none in layers without a window");
  if (family.longrope_only) words.push_back("types default and longrope only");
  return words.empty() ? "whole heads" : base::join(words);
}

std::string windows_of(const ArchitectureTraits& family) {
  switch (family.window) {
    case config::WindowKey::none: return "-";
    case config::WindowKey::size: return "every layer (`sliding_window`)";
    case config::WindowKey::flag: return "some layers (`use_sliding_window`)";
    case config::WindowKey::types: return "some layers (`layer_types`)";
  }
  throw InternalError("a key of windows that is not known");
}

std::string files_of(const ArchitectureTraits& family) {
  Words words{"safetensors"};
  if (family.fused == config::FusedWeights::gate_up) words.push_back("gate and up in one tensor");
  if (family.fused == config::FusedWeights::qkv_gate_up)
    words.push_back("q, k, v and gate, up in one tensor each");
  if (!family.gguf.empty()) words.push_back("GGUF");
  return base::join(words);
}

bool generates_on_several_ranks(const model::ModelSpec& spec) {
  try {
    model::tensor_parallel_layout(spec, 2);
    return true;
  } catch (const UserError&) { return false; }
}

std::string family_row(const ArchitectureTraits& family) {
  const model::ModelSpec spec = usual_model(family);
  const std::string_view classifier =
      family.classifier_prefix.empty() ? family.class_prefix : family.classifier_prefix;
  return base::text(
      "| `", family.class_prefix, "ForCausalLM`, `", classifier, "ForSequenceClassification` | `",
      family.word, "` | ", config::checkpoints_of(family.architecture), " | ",
      block_of(family, spec), " | ", rotation_of(family, spec), " | ", windows_of(family), " | ",
      files_of(family), " | ", generates_on_several_ranks(spec) ? "1 to KV heads" : "1", " |\n");
}

std::string families() {
  std::string out =
      "\n## Families\n\n"
      "`...ForSequenceClassification` with one label is a reward model or the start of a critic; "
      "`trireme rm` writes it. Of each\n"
      "checkpoint the unit tests read the facts of its config.json. A small random model of each "
      "family is compared with transformers in log-probs,\n"
      "greedy answers, a training step and exports (`tests/interop/architectures.py`; with stored "
      "numbers `tests/integration/families_test.py`), and\n"
      "tensor-parallel generation with that of one rank "
      "(`tests/unit/generate/tensor_parallel_test.cpp`).\n\n"
      "| `architectures` | `model_type` | checkpoints | block | rotation | windows | weights | "
      "`generate.tensor_parallel` |\n"
      "| --- | --- | --- | --- | --- | --- | --- | --- |\n";
  for (const ArchitectureTraits& family : config::architecture_table) out += family_row(family);
  return out;
}

std::string rotations_and_windows() {
  return base::text(
      "\nRotations (`rope_type`): ", base::join(words_of<config::RopeKind>()),
      ". With dynamic and longrope the frequencies are those of the whole sequence, as\n"
      "transformers has them without a cache. A text that gets longer than "
      "`original_max_position_embeddings` (longrope) is computed anew once; beyond\n"
      "`max_position_embeddings` with dynamic it is at every token, up to `factor` times that "
      "length. Training sees the frequencies of the finished\n"
      "text, so log-probs of tokens before the switch differ from those at generation: train with "
      "texts on one side of it.\n\n"
      "Windows: a layer sees as many last tokens as `sliding_window` says, the query's included. "
      "Where every layer has a window, the pages of the KV\n"
      "cache that it has passed are given back while a text is generated; a model that also has "
      "layers without a window keeps all pages\n"
      "([why](../design/0026-families-and-mixtures.md#pages-of-windows)). On GPUs keys and values "
      "of models with windows or soft caps are gathered for LibTorch's\n"
      "attention, and steps are not recorded.\n");
}

std::string condition_of(config::RefusedKey::When when) {
  switch (when) {
    case config::RefusedKey::When::present: return "with any value";
    case config::RefusedKey::When::not_zero: return "above 0";
    case config::RefusedKey::When::yes: return "true";
    case config::RefusedKey::When::no: return "false";
  }
  throw InternalError("a condition that is not known");
}

std::string refusals() {
  std::string out =
      "\n## What is refused\n\n"
      "Each with its name and the file: other `architectures`, other activations than the "
      "family's, other rope types than those above, quantised weights\n"
      "(`quantization_config` of other methods than `fp8`), "
      "classifiers of several labels, and\n\n"
      "| key of config.json | refused | because |\n| --- | --- | --- |\n";
  for (const config::RefusedKey& refused : config::refused_keys)
    out += base::text("| `", refused.key, "` | ", condition_of(refused.when), " | ", refused.why,
                      " |\n");
  return out;
}

std::string weights() {
  return base::text(
      "\n## Weights\n\n"
      "safetensors, one file or several with an index, in float32, float16, bfloat16 or fp8 with "
      "scales (`quantization_config` of transformers' FineGrainedFP8Config: each\n"
      "weight is its element times its scale, in fp32; training and exports have float weights); "
      "transformers' names, with anything before them (`language_model.`,\n"
      "`module.`) or without `model.`. GGUF files (",
      base::join(model::readable_gguf_types()),
      ") are converted once: `trireme convert model.gguf FOLDER`. What else comes in and\n"
      "what an export has: [exports.md](exports.md).\n");
}

std::string tokenizers() {
  const auto row = [](std::string_view part, std::span<const std::string_view> names,
                      std::string_view more = "") {
    return base::text("| ", part, " | ", text::list_of(names), more, " |\n");
  };
  return base::text(
      "\n## Tokenizers and chat templates\n\n"
      "Any family takes any tokenizer that is read from `tokenizer.json`. Ids and texts equal "
      "those of Hugging Face's `tokenizers` for every kind in\n"
      "`tests/gold/tokenizers`, and on over 1 MB of text in 24 languages and of code "
      "(`tests/interop/corpus.py`).\n\n"
      "| part | types |\n| --- | --- |\n",
      row("model", text::known_word_models,
          " (BPE on bytes or characters, both with or without `byte_fallback`)"),
      row("normalizer", text::known_normalizers),
      row("pre_tokenizer", text::known_pre_tokenizers, ", or none"),
      row("`behavior` of Split and Punctuation", text::known_split_behaviors, "; inverted too"),
      row("`prepend_scheme` of Metaspace", text::known_prepend_schemes),
      row("decoder", text::known_decoders),
      row("post_processor", text::known_post_processors, ", or none"),
      "| added tokens | every flag |\n\n"
      "Others are refused by name. A folder that has only `tokenizer.model` or another form is "
      "refused with the command that makes a `tokenizer.json` of\n"
      "it (transformers' `AutoTokenizer`). Chat templates are the model's own Jinja text, rendered "
      "as jinja2 does for transformers\n"
      "([chat_templates.md](chat_templates.md)).\n");
}

}  // namespace

std::string models_page() {
  return base::text(
      "# Models\n\n"
      "Made from the tables of the program (`trireme --models`). Dense decoders in Hugging Face's "
      "file layout; `inputs/models/` has shapes for performance\n"
      "studies with random weights (`trireme init`, or `model.shape` in a deck). What the program "
      "does not have: [limits.md](limits.md).\n",
      families(), rotations_and_windows(), refusals(), weights(), tokenizers());
}

}  // namespace trireme::tools
