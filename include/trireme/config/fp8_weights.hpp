// What `quantization_config` of a config.json says about weights in 8 bits.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace trireme::config {

// A scale for each block of so many rows and columns; 0: no blocks.
struct Fp8Weights {
  int64_t block_rows = 0, block_columns = 0;
};

// Of a model's folder (or its config.json); empty: no quantization_config. UserError(bad_data) as
// load_model_shape: other kinds of quantised weights.
std::optional<Fp8Weights> load_fp8_weights(const std::filesystem::path& folder_or_file);

}  // namespace trireme::config
