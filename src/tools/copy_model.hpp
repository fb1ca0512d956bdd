// Parameters from anywhere into a Hugging Face folder, a bounded piece at a time.
#pragma once

#include <functional>

#include "trireme/base/shard_layout.hpp"
#include "trireme/model/model_files.hpp"

namespace trireme::tools {

// Fills `out` with a block of a parameter.
using ReadBlock = std::function<void(size_t parameter, const base::Block& block, float* out)>;

// Creates, fills and commits `folder`. One process.
void copy_model(const model::ModelSpec& spec, const ReadBlock& read,
                const std::filesystem::path& folder, const model::ModelExport::Options& options);

}  // namespace trireme::tools
