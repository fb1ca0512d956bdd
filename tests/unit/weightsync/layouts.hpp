// Layouts as the trainer and the generator have them: rows over M ranks, Llama's tensor-parallel
// slices over t.
#pragma once

#include <string>
#include <vector>

#include "trireme/base/shard_layout.hpp"

namespace trireme::weightsync {

struct LlamaShape {
  int64_t layers = 2, hidden = 64, heads = 4, kv_heads = 2, head = 16, ffn = 96, vocabulary = 130;
};

inline std::vector<base::TensorSpec> llama_tensors(const LlamaShape& s) {
  std::vector<base::TensorSpec> out{{"model.embed_tokens.weight", {s.vocabulary, s.hidden}}};
  for (int64_t l = 0; l < s.layers; ++l) {
    const std::string p = "model.layers." + std::to_string(l) + ".";
    out.push_back({p + "input_layernorm.weight", {s.hidden}});
    out.push_back({p + "self_attn.q_proj.weight", {s.heads * s.head, s.hidden}});
    out.push_back({p + "self_attn.k_proj.weight", {s.kv_heads * s.head, s.hidden}});
    out.push_back({p + "self_attn.v_proj.weight", {s.kv_heads * s.head, s.hidden}});
    out.push_back({p + "self_attn.o_proj.weight", {s.hidden, s.heads * s.head}});
    out.push_back({p + "post_attention_layernorm.weight", {s.hidden}});
    out.push_back({p + "mlp.gate_proj.weight", {s.ffn, s.hidden}});
    out.push_back({p + "mlp.up_proj.weight", {s.ffn, s.hidden}});
    out.push_back({p + "mlp.down_proj.weight", {s.hidden, s.ffn}});
  }
  out.push_back({"model.norm.weight", {s.hidden}});
  return out;
}

// Range of rank r of t when `units` groups of `size` are dealt out, first ranks get one more: 3
// groups on 2 ranks = 2 + 1.
inline std::vector<int64_t> dealt(int64_t units, int64_t size, int t) {
  std::vector<int64_t> bounds{0};
  for (int r = 0; r < t; ++r)
    bounds.push_back(bounds.back() + (units / t + (r < units % t ? 1 : 0)) * size);
  return bounds;
}

inline base::ShardLayout llama_slices(const LlamaShape& s, int t) {
  using base::SliceAxis;
  std::vector<base::Slicing> slicing;
  const int64_t group = s.heads / s.kv_heads * s.head;
  for (const auto& tensor : llama_tensors(s)) {
    auto has = [&](const char* part) { return tensor.name.find(part) != std::string::npos; };
    if (has("q_proj")) slicing.push_back({SliceAxis::rows, dealt(s.kv_heads, group, t)});
    else if (has("k_proj") || has("v_proj"))
      slicing.push_back({SliceAxis::rows, dealt(s.kv_heads, s.head, t)});
    else if (has("o_proj")) slicing.push_back({SliceAxis::columns, dealt(s.kv_heads, group, t)});
    else if (has("gate") || has("up_proj"))
      slicing.push_back({SliceAxis::rows, dealt(s.ffn, 1, t)});
    else if (has("down")) slicing.push_back({SliceAxis::columns, dealt(s.ffn, 1, t)});
    else if (has("embed")) slicing.push_back({SliceAxis::rows, dealt(s.vocabulary, 1, t)});
    else slicing.push_back({});
  }
  return base::ShardLayout::sliced(llama_tensors(s), t, slicing);
}

}  // namespace trireme::weightsync
