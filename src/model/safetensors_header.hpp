// Parsing of what a safetensors file or index says about itself.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "trireme/model/safetensors.hpp"

namespace trireme::model {

constexpr uint64_t safetensors_header_limit = 100'000'000;
constexpr int64_t safetensors_dimension_limit = 8;

struct SafetensorsHeader {
  std::map<std::string, SafetensorsEntry, std::less<>> entries;
  std::map<std::string, std::string, std::less<>> metadata;
};

// `json` is the header's text, `data_bytes` the size of what follows it. UserError(bad_data) on
// every violation.
SafetensorsHeader parse_safetensors_header(std::string_view json, uint64_t data_bytes,
                                           const std::string& file);

// Tensor name -> file name of a model.safetensors.index.json; file names are checked to be plain.
std::map<std::string, std::string> parse_safetensors_index(std::string_view json,
                                                           const std::string& file);

// The header of a file with these tensors laid out one after another in the given order: length,
// JSON, blanks to a multiple of 8 bytes.
std::string safetensors_header_text(const std::vector<const base::TensorSpec*>& tensors,
                                    StoredType type);

}  // namespace trireme::model
