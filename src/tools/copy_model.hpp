// Parameters from anywhere into a Hugging Face folder, a bounded piece at a time.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>

#include "trireme/base/shard_layout.hpp"
#include "trireme/model/model_files.hpp"

namespace trireme::tools {

// Fills `out` with a block of a parameter.
using ReadBlock = std::function<void(size_t parameter, const base::Block& block, float* out)>;

// model::KeptFiles::read; says in the log what is not copied.
std::shared_ptr<const model::KeptFiles> kept_files(const std::filesystem::path& model,
                                                   const std::filesystem::path& tokenizer);

// Creates, fills and commits `folder`. One process.
void copy_model(const model::ModelSpec& spec, const ReadBlock& read,
                const std::filesystem::path& folder, const model::ModelExport::Options& options);

}  // namespace trireme::tools
