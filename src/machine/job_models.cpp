#include "trireme/machine/job_models.hpp"

#include <numeric>

#include "trireme/base/error.hpp"
#include "trireme/config/model_folders.hpp"
#include "trireme/config/models_of.hpp"
#include "trireme/config/reward_sources.hpp"
#include "trireme/model/adapter_files.hpp"
#include "trireme/model/model_files.hpp"
#include "trireme/model/trained_head.hpp"

namespace trireme::machine {
namespace {

namespace fs = std::filesystem;

bool is_model(const config::RewardSource& source) {
  return source.kind == config::RewardKind::model;
}

std::vector<config::JudgeModel> judges_of(const config::Options& options, config::Command command) {
  if (command != config::Command::ppo) return {};
  return config::judge_models(options);
}

bool has_critic(const config::Options& options, config::Command command) {
  return command == config::Command::ppo && options.has_critic();
}

bool path_exists(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

// A model's folder may be here without its config.json: a download that has not come to it.
bool is_here(const std::string& path) {
  if (path.empty() || !path_exists(path)) return false;
  std::error_code error;
  if (!fs::is_directory(path, error)) return true;
  if (path_exists(fs::path(path) / "config.json")) return true;
  for (fs::directory_iterator entry(path, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().extension() == ".gguf") return true;
  }
  return false;
}

// Of a model that the deck names or not, for messages.
std::string name_missing(const std::string& key, const std::string& path) {
  return path.empty() ? key + " is not set" : base::text(key, " = \"", path, "\" is not here");
}

class ShapesToPlan {
 public:
  ShapesToPlan(const config::Options& options, const fs::path& deck,
               std::vector<std::string>& assumed)
      : options_(options), deck_(deck), assumed_(assumed) {}

  config::ModelShape trained() const {
    const std::string& path = config::trained_folder(options_);
    if (is_here(path)) return model::shape_with_weights(path);
    const std::string key =
        options_.model.path.empty() && !options_.model.shape.empty() ? "model.shape" : "model.path";
    VALIDATE(!options_.plan.model.empty(), ExitCode::input_missing, name_missing(key, path),
             " (the plan needs the shape of the model, its config.json, and no weights): set "
             "plan.model to a config.json or a folder with one, such as "
             "plan.model=inputs/models/llama3-8b");
    assumed_.push_back(base::text(name_missing(key, path), ": planned by plan.model = \"",
                                  options_.plan.model, "\""));
    return stand_in("plan.model", options_.plan.model);
  }

  // A reward model or a judge.
  config::ModelShape reward_model(size_t index, const std::string& path,
                                  const config::ModelShape& actor) const {
    if (is_here(path)) return model::shape_with_weights(path);
    const std::string missing = name_missing(base::text("reward.source.", index, ".path"), path);
    if (options_.plan.reward_model.empty()) {
      assumed_.push_back(missing + ": planned as large as the actor");
      return actor;
    }
    assumed_.push_back(base::text(missing, ": planned by plan.reward_model = \"",
                                  options_.plan.reward_model, "\""));
    return stand_in("plan.reward_model", options_.plan.reward_model);
  }

  // Of the critic or the reference: `implied` where their own path is not here.
  config::ModelShape other(const std::string& key, const std::string& path,
                           const config::ModelShape& implied, const std::string& as) const {
    if (path.empty()) return implied;
    if (is_here(path)) return model::shape_with_weights(path);
    assumed_.push_back(base::text(name_missing(key, path), ": planned as large as ", as));
    return implied;
  }

 private:
  config::ModelShape stand_in(const std::string& key, const std::string& path) const {
    const fs::path beside = deck_.parent_path() / path;
    if (is_here(path)) return model::shape_with_weights(path);
    VALIDATE(is_here(beside.string()), ExitCode::input_missing, key, " = \"", path,
             "\" has no config.json (looked for from here and from the deck's folder)");
    return model::shape_with_weights(beside);
  }

  const config::Options& options_;
  const fs::path& deck_;
  std::vector<std::string>& assumed_;
};

}  // namespace

ModelShapes shapes_of(const config::Options& options, config::Command command,
                      const config::ModelShape& actor,
                      const std::optional<config::ModelShape>& critic) {
  ModelShapes out;
  out.actor = actor;
  for (const auto& source : options.reward.source) {
    if (command == config::Command::ppo && is_model(source))
      out.reward_models.push_back(model::shape_with_weights(source.path));
  }
  for (const auto& judge : judges_of(options, command))
    out.judges.push_back(model::shape_with_weights(judge.path));
  if (has_critic(options, command)) out.critic = critic.value_or(actor);
  if (config::has_reference_model(options, command)) {
    const std::string& path = options.reference.path;
    out.reference = path.empty() ? actor : model::shape_with_weights(path);
  }
  return out;
}

ModelShapes shapes_to_plan(const config::Options& options, config::Command command,
                           const std::string& critic, const fs::path& deck,
                           std::vector<std::string>& assumed) {
  const ShapesToPlan find(options, deck, assumed);
  ModelShapes out;
  out.actor = find.trained();
  for (size_t i = 0; command == config::Command::ppo && i < options.reward.source.size(); ++i) {
    if (is_model(options.reward.source[i]))
      out.reward_models.push_back(find.reward_model(i, options.reward.source[i].path, out.actor));
  }
  for (const auto& judge : judges_of(options, command))
    out.judges.push_back(find.reward_model(judge.sources.front(), judge.path, out.actor));
  if (has_critic(options, command)) {
    const bool own = !options.critic.path.empty(), judged = !out.reward_models.empty();
    const bool trained = !critic.empty() && config::same_folder(critic, options.model.path);
    const config::ModelShape& implied =
        judged && !(trained && !own) ? out.reward_models.front() : out.actor;
    out.critic = own ? find.other("critic.path", critic, implied,
                                  judged ? "the first reward model" : "the actor")
                     : implied;
  }
  if (config::has_reference_model(options, command))
    out.reference = find.other("reference.path", options.reference.path, out.actor, "the actor");
  return out;
}

plan::JobModels job_models(const config::Options& options, config::Command command,
                           const ModelShapes& shapes) {
  plan::JobModels out;
  model::ModelSpec actor =
      model::adapted(model::describe(shapes.actor, model::trained_head(command)),
                     options.actor.lora, config::trained_folder(options), "actor.lora");
  model::freeze(actor, options.actor.freeze, "actor.freeze");
  out.actor = layout_of(actor);
  if (command == config::Command::ppo) {
    out.slices =
        model::tensor_parallel_layout(actor, static_cast<int>(options.generate.tensor_parallel));
  }
  if (shapes.critic) {
    model::ModelSpec critic =
        model::adapted(model::describe(*shapes.critic, model::HeadKind::score), options.critic.lora,
                       config::critic_base(options), "critic.lora");
    model::freeze(critic, options.critic.freeze, "critic.freeze");
    out.critic = layout_of(critic, config::critic_shares_base(options) ? &actor : nullptr);
  }
  size_t judge = 0;
  for (const auto& source : options.reward.source) {
    if (judge == shapes.reward_models.size() || !is_model(source)) continue;
    model::ModelSpec spec = model::describe(shapes.reward_models[judge++], model::HeadKind::score);
    const bool adapter = model::is_adapter(source.path);
    if (adapter)
      spec = model::with_adapter(spec, model::load_adapter_config(source.path), source.path);
    const bool lent = adapter && model::is_adapter_on(source.path, options.model.path);
    out.reward_models.push_back(layout_of(spec, lent ? &actor : nullptr));
  }
  for (const auto& shape : shapes.judges) {
    const model::ModelSpec spec = model::describe(shape, model::HeadKind::language);
    out.judges.push_back({layout_of(spec), model::tensor_parallel_layout(spec, 1)});
  }
  if (shapes.reference)
    out.reference = layout_of(model::describe(*shapes.reference, model::HeadKind::language));
  return out;
}

config::RoleMap planned_roles(const config::RoleMap& roles, int ranks, config::Command command) {
  if (command == config::Command::ppo) return roles;
  config::RoleMap out;
  out.trainer.resize(static_cast<size_t>(ranks));
  std::iota(out.trainer.begin(), out.trainer.end(), 0);
  return out;
}

}  // namespace trireme::machine
