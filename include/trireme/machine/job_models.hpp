// The models of a job as the ledger takes them: shapes by config.json, and by the weights, where
// they are here, whether a tied model has a head of its own.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "trireme/config/options.hpp"
#include "trireme/config/ranks.hpp"
#include "trireme/machine/model_layout.hpp"
#include "trireme/model/spec.hpp"
#include "trireme/plan/job.hpp"

namespace trireme::machine {

// Shapes of all models that a run opens.
struct ModelShapes {
  config::ModelShape actor;  // the model that is trained
  std::optional<config::ModelShape> critic, reference;
  std::vector<config::ModelShape> reward_models;
  std::vector<config::ModelShape> judges;  // as config::judge_models()
};
// Of a run that trains a model of this shape, and a critic of that (none: as large as the trained
// model, where the deck has one); reads config.json files, or headers of GGUF files, of the others,
// on every rank alike. Throws UserError as model::shape_with_weights.
ModelShapes shapes_of(const config::Options& options, config::Command command,
                      const config::ModelShape& actor,
                      const std::optional<config::ModelShape>& critic);

// The same where the models need not be here: of each that is missing, what the deck implies. The
// trained model has the shape of plan.model; reward models that of plan.reward_model, else the
// trained one's; the critic, which starts from the folder `critic`, that of the first reward model,
// else the trained one's; the reference the trained one's. `deck`: plan.* may be relative to its
// folder. Adds a line to `assumed` for each. Throws UserError(input_missing) where the trained
// model's shape cannot be known.
ModelShapes shapes_to_plan(const config::Options& options, config::Command command,
                           const std::string& critic, const std::filesystem::path& deck,
                           std::vector<std::string>& assumed);

plan::JobModels job_models(const config::Options& options, config::Command command,
                           const ModelShapes& shapes);

// Roles of the ledger: with another command than ppo every rank trains.
config::RoleMap planned_roles(const config::RoleMap& roles, int ranks, config::Command command);

}  // namespace trireme::machine
