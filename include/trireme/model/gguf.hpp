// GGUF, the file format of llama.cpp (ggml/docs/gguf.md), versions 2 and 3, little-endian: read
// only, to start training from published models. Tensors of types F32, F16, BF16, Q4_0, Q4_1, Q5_0,
// Q5_1 and Q8_0 are dequantised to fp32; others are refused by name. Every count is capped and
// every size computed without overflow before memory is taken for it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "trireme/base/files.hpp"
#include "trireme/config/model_shape.hpp"
#include "trireme/model/weight_source.hpp"

namespace trireme::model {

// A metadata value. Integers of all widths become i64 (u64 beyond its range is refused), both
// floats double.
using GgufValue = std::variant<bool, int64_t, double, std::string, std::vector<bool>,
                               std::vector<int64_t>, std::vector<double>, std::vector<std::string>>;

// The file's tokenizer metadata, for the data module to turn into a tokenizer.json.
struct GgufTokenizer {
  std::string model;  // tokenizer.ggml.model: "gpt2" is byte-level BPE, "llama" SentencePiece
  std::string
      pre;  // tokenizer.ggml.pre: names the split pattern, e.g. "llama-bpe", "smollm", "qwen2"
  std::vector<std::string> tokens;  // by id
  std::vector<std::string> merges;  // "left right", by rank
  std::vector<int32_t>
      types;  // per token: 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte
  std::vector<float> scores;  // SentencePiece only
  std::optional<int32_t> bos, eos, pad, unknown;
  std::optional<bool> add_bos, add_eos, add_space_prefix;
  std::string chat_template;  // Jinja; empty when there is none
};

std::vector<std::string> readable_gguf_types();  // "F32", ...

// The weights under their Hugging Face names and in Hugging Face's layout: llama.cpp stores the
// rows of q and k of the llama architecture permuted for its interleaved rotary embedding, which is
// undone here.
class GgufFile : public WeightSource {
 public:
  // Reads and checks all metadata. UserError(bad_data) naming file and byte; input_missing.
  explicit GgufFile(const std::filesystem::path& path);
  ~GgufFile() override;

  // From general.architecture and its keys; llama and qwen2, others are refused by name.
  const config::ModelShape& shape() const { return shape_; }
  const GgufTokenizer& tokenizer() const { return tokenizer_; }
  const std::map<std::string, GgufValue, std::less<>>& metadata() const { return metadata_; }
  uint32_t version() const { return version_; }

  std::vector<std::string> names() const override;
  bool contains(std::string_view name) const override;
  const base::TensorSpec& spec(std::string_view name) const override;
  std::string_view type_name(std::string_view name) const override;
  // Of a quantised tensor whole blocks of 32 elements are read.
  void read(std::string_view name, const base::Block& block, float* out) const override;
  std::string describe() const override { return file_.path().string(); }

 private:
  struct Tensor {
    base::TensorSpec spec;       // Hugging Face name and shape
    uint32_t type = 0;           // ggml_type
    uint64_t begin = 0;          // bytes from the start of the file
    int64_t permuted_heads = 0;  // > 0: rows are permuted within this many heads
  };
  const Tensor& tensor(std::string_view name) const;

  base::MappedFile file_;
  uint32_t version_ = 0;
  std::map<std::string, GgufValue, std::less<>> metadata_;
  std::map<std::string, Tensor, std::less<>> tensors_;
  config::ModelShape shape_;
  GgufTokenizer tokenizer_;
};

}  // namespace trireme::model
