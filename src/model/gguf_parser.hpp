// The header of a GGUF file, checked: metadata and where each tensor lies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "trireme/model/gguf.hpp"

namespace trireme::model {

struct GgufTensorInfo {
  std::string name;  // as in the file: blk.0.attn_q.weight
  std::vector<int64_t>
      shape;           // slowest dimension first, as elsewhere (the file has the fastest first)
  uint32_t type = 0;   // ggml_type, one that we can read
  uint64_t begin = 0;  // bytes from the start of the file
  uint64_t bytes = 0;
};

struct GgufHeader {
  uint32_t version = 0;
  std::map<std::string, GgufValue, std::less<>> metadata;
  std::vector<GgufTensorInfo> tensors;
};

// UserError(bad_data) naming `file` and the byte where it went wrong.
GgufHeader parse_gguf(std::span<const std::byte> bytes, const std::string& file);

// How a ggml type stores elements: blocks of `elements` in `bytes`.
struct GgufType {
  std::string_view name;
  uint32_t elements = 0;
  uint32_t bytes = 0;
};
// nullptr when the type cannot be read; gguf_type_name then names it for the message.
const GgufType* find_gguf_type(uint32_t type);
std::string gguf_type_name(uint32_t type);
// `blocks` blocks of a readable type to fp32.
void dequantise(uint32_t type, const std::byte* from, uint64_t blocks, float* out);

// general.architecture and its keys to a shape; `tensors` tell about biases, tied weights and rope
// factors.
config::ModelShape gguf_shape(const GgufHeader& header, std::span<const std::byte> bytes,
                              const std::string& file);
GgufTokenizer gguf_tokenizer(const GgufHeader& header, const std::string& file);
// blk.3.attn_q.weight -> model.layers.3.self_attn.q_proj.weight; the name itself when it is not
// known.
std::string hugging_face_name(const std::string& name);

}  // namespace trireme::model
