// Models of a run: where shapes and weights come from, and the export of what was trained.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "trireme/comm/roles.hpp"
#include "trireme/config/options.hpp"
#include "trireme/model/model_files.hpp"
#include "trireme/model/spec.hpp"
#include "trireme/zero/sharded_model.hpp"

namespace trireme::driver {

// A model before training: its spec and rows on demand, from a folder or drawn at random (model.shape).
struct ModelStart {
  model::ModelSpec spec;
  std::shared_ptr<const model::WeightSource> weights;  // null: random
  uint64_t seed = 0;

  zero::ReadRows reader() const;
};
// model.path or model.shape with this head; a score head is drawn when the weights have none. Every rank opens the files; nothing
// is collective. UserErrors name the path.
ModelStart trained_start(const config::Options& options, model::HeadKind head);
ModelStart actor_start(const config::Options& options);  // with a language-model head
// critic.path, else the first reward model, else the actor; a score head is drawn when the weights have none.
ModelStart critic_start(const config::Options& options, const ModelStart& actor);
ModelStart reference_start(const config::Options& options, const ModelStart& actor);

// A model cut along the mesh's shards; a trainable one sums its gradients over the copies along `data`, too. Collective over the mesh.
std::unique_ptr<zero::ShardedModel> make_sharded(const comm::Mesh& mesh, const model::ModelSpec& spec, at::Device device,
                                                 zero::ShardedModelOptions options);

// Whether every model of a PPO run takes sequences as long as the deck allows: actor, and as far as the run has them critic,
// reference and reward models. Reads config.json only, on every rank; nothing is collective. Throws UserError(configuration)
// naming the keys of all that are too short.
void check_positions(const config::Options& options, const ModelStart& actor, const std::optional<ModelStart>& critic);

// Writes a model's weights, or their moving average, as a Hugging Face folder: every trainer its own rows. Collective over world.
// `model` is null on ranks that are no trainers. `type`: of the weights in the files.
enum class Weights : uint8_t { trained, average };
void export_model(const config::Options& options, const comm::Roles& roles, const model::ModelSpec& spec, zero::ShardedModel* model,
                  const std::filesystem::path& folder, model::StoredType type, Weights which = Weights::trained);

}  // namespace trireme::driver
