// Where the models of a run start from: folders of weights, or shapes that are filled at random.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "trireme/comm/comm.hpp"
#include "trireme/config/options.hpp"
#include "trireme/model/kept_files.hpp"
#include "trireme/model/spec.hpp"
#include "trireme/model/trained_head.hpp"
#include "trireme/model/weight_source.hpp"
#include "trireme/zero/sharded_model.hpp"

namespace trireme::learn {

// A model before training: its spec and rows on demand, from a folder or drawn at random
// (model.shape).
struct ModelStart {
  model::ModelSpec spec;
  std::shared_ptr<const model::WeightSource> weights;  // null: random
  uint64_t seed = 0;

  zero::ReadRows reader() const;
};
// model.path or model.shape with this head; a score head is drawn when the weights have none. Every
// rank opens the files; nothing is collective. UserErrors name the path.
ModelStart trained_start(const config::Options& options, model::HeadKind head);
ModelStart actor_start(const config::Options& options);  // with a language-model head
// Where the critic starts from: critic.path, with critic.lora else model.path, else the first
// reward model that reads the policy's tokens, else the actor. A critic gives each token of the
// policy a value, so an id has to mean the same token to it. Reads config.json and, where they are
// there, the tokenizers. Throws UserError(bad_data) for a critic.path with other tokens or too few
// rows.
struct CriticPath {
  std::string path;         // empty: the actor's shape at random
  std::string passed_over;  // the reward model that has other tokens; empty: none
};
CriticPath critic_path(const config::Options& options);
// The model there; a score head is drawn when the weights have none.
ModelStart critic_start(const config::Options& options, const ModelStart& actor);
ModelStart reference_start(const config::Options& options, const ModelStart& actor);

// The files that exports of a run keep of the folder that the trained model, or the critic, starts
// from, with the run's tokenizer: read at the start by rank 0, which writes it at the end; null on
// the other ranks, and where the deck wants no export. Says in the log what is not copied.
// Collective over world. Throws UserError(io_error) on all ranks.
std::shared_ptr<const model::KeptFiles> files_for_exports(const config::Options& options,
                                                          const comm::CommView& world);
std::shared_ptr<const model::KeptFiles> critic_files_for_exports(const config::Options& options,
                                                                 const comm::CommView& world);

// Whether every model of a PPO run takes sequences as long as the deck allows: the actor, and as
// far as the run has them critic, reference and reward models. Reads config.json only, on every
// rank; nothing is collective. Throws UserError(configuration) naming the keys of all that are too
// short.
void check_positions(const config::Options& options, const ModelStart& actor,
                     const std::optional<ModelStart>& critic);

}  // namespace trireme::learn
