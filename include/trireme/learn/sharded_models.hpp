// Models of a run, cut over its ranks, and the export of what was trained.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>

#include "trireme/comm/mesh.hpp"
#include "trireme/comm/roles.hpp"
#include "trireme/config/options.hpp"
#include "trireme/learn/model_start.hpp"
#include "trireme/machine/memory_check.hpp"
#include "trireme/model/model_files.hpp"
#include "trireme/model/spec.hpp"
#include "trireme/zero/sharded_model.hpp"

namespace trireme::learn {

// A model cut along the mesh's shards; a trainable one sums its gradients over the copies along
// `data`, too. Collective over the mesh.
std::unique_ptr<zero::ShardedModel> make_sharded(const comm::Mesh& mesh,
                                                 const model::ModelSpec& spec, at::Device device,
                                                 zero::ShardedModelOptions options);

// Of a model that the deck trains, after memory.admit(); base and track_changes are the caller's.
zero::ShardedModelOptions trained_options(const config::Options& options, const comm::Roles& roles,
                                          const model::ModelSpec& spec,
                                          const machine::MemoryCheck& memory);

// A frozen model on the trainers: the reference of dpo, a teacher. Collective over the trainers.
std::unique_ptr<zero::ShardedModel> make_reference(const config::Options& options,
                                                   const comm::Roles& roles,
                                                   const ModelStart& start, at::Device device);

// Writes a model's weights, or their moving average, as a Hugging Face folder: every trainer its
// own rows; those of frozen parameters as they are where the model started. Collective over world.
// `model` is null on ranks that are no trainers. `how.kept`: of files_for_exports().
enum class Weights : uint8_t { trained, average };
void export_model(const comm::Roles& roles, const ModelStart& start, zero::ShardedModel* model,
                  const std::filesystem::path& folder, const model::ModelExport::Options& how,
                  Weights which = Weights::trained);

}  // namespace trireme::learn
