// config.json of an export: the one that the model came with, and what training changed in it.
#pragma once

#include <filesystem>
#include <string>

#include "trireme/config/model_shape.hpp"

namespace trireme::config {

// The file that load_model_shape reads: config.json of a folder, or the file itself.
std::filesystem::path config_file(const std::filesystem::path& folder_or_file);

// `source`: the text of the config.json that the model started from; "" makes one from the shape
// alone. Only keys whose value is another one in `shape` are changed: architectures and what labels
// a score head has, dtype, tie_word_embeddings, special tokens, mean and std of rewards. Keys that
// the program does not know keep their bytes. UserError(bad_data) as parse_model_shape.
std::string exported_config_json(const std::string& source, const ModelShape& shape);

}  // namespace trireme::config
