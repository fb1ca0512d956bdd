// Parts of a ModelShape that are read and written by files of their own.
#pragma once

#include "config/json_reader.hpp"
#include "trireme/config/model_shape.hpp"

namespace trireme::config {

// Rotary embeddings: rope_theta + rope_scaling (transformers 4), or rope_parameters (transformers
// 5). After the sizes.
void read_rope(const JsonReader& json, ModelShape& shape);
void write_rope(const ModelShape& shape, nlohmann::ordered_json& json);

// Layers without rotary embedding, and layers with a window.
void read_layers(const JsonReader& json, ModelShape& shape);
void write_layers(const ModelShape& shape, nlohmann::ordered_json& json);

}  // namespace trireme::config
