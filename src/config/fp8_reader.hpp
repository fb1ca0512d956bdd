// quantization_config of a config.json that is open.
#pragma once

#include <optional>

#include "config/json_reader.hpp"
#include "trireme/config/fp8_weights.hpp"

namespace trireme::config {

// As load_fp8_weights.
std::optional<Fp8Weights> read_fp8_weights(const JsonReader& json);

}  // namespace trireme::config
