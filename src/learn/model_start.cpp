#include "torch/torch.hpp"

#include "trireme/learn/model_start.hpp"

#include <filesystem>
#include <string>
#include <vector>

#include "trireme/base/error.hpp"
#include "trireme/base/log.hpp"
#include "trireme/base/text.hpp"
#include "trireme/comm/agree.hpp"
#include "trireme/config/exported_config.hpp"
#include "trireme/config/model_folders.hpp"
#include "trireme/config/models_of.hpp"
#include "trireme/model/adapter_files.hpp"
#include "trireme/model/model_files.hpp"
#include "trireme/text/tokenizer.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::learn {
namespace {

ModelStart open(const std::string& path, model::HeadKind head, config::HeadType head_type,
                uint64_t seed) {
  const trace::Region region{"open a model", trace::no_argument, trace::Category::io};
  const auto folder = model::open_model(path);
  const auto allowed =
      head == model::HeadKind::score ? model::Missing::score_head : model::Missing::nothing;
  ModelStart start{model::describe_and_check(folder, head, allowed), folder.weights, seed};
  start.spec.head_type = head_type;
  return start;
}

// With the adapter of the deck's section `key`, new or as it is stored.
void adapt(ModelStart& start, const config::LoraOptions& lora, const std::string& base,
           const std::string& key) {
  if (!lora.wanted()) return;
  start.spec = model::adapted(start.spec, lora, base, key);
  if (!start.weights) return;
  std::optional<model::AdapterFolder> folder;
  if (!lora.path.empty()) folder = model::open_adapter(lora.path);
  start.weights = model::adapted_weights(start.spec, start.weights, folder ? &*folder : nullptr);
}

int64_t positions_of(const std::string& path) { return model::load_shape(path).longest(); }

// Why a critic from this folder would misread the policy's tokens; empty: it would not, as far as
// the files tell.
std::string misread_tokens(const std::string& path, const config::Options& options) {
  const std::filesystem::path own = path, policy = options.tokenizer_path();
  std::error_code error;
  if (!std::filesystem::exists(policy / "tokenizer.json", error) ||
      std::filesystem::equivalent(own, policy, error))
    return {};
  const auto tokenizer = text::Tokenizer::load(policy);
  if (std::filesystem::exists(own / "tokenizer.json", error) &&
      !tokenizer.shares_ids_with(text::Tokenizer::load(own)))
    return "its tokenizer has other tokens for the policy's ids";
  if (!std::filesystem::exists(own / "config.json", error)) return {};
  const int64_t rows = config::load_model_shape(own).vocab;
  if (rows >= tokenizer.vocab_size()) return {};
  return base::text("it has ", rows, " vocabulary rows, and the policy's tokenizer ",
                    tokenizer.vocab_size(), " ids");
}

// Of a model's folder; "": of model.shape. Collective over world.
std::shared_ptr<const model::KeptFiles> files_of(const std::string& path,
                                                 const config::Options& options,
                                                 const comm::CommView& world) {
  if (options.ckpt.save_hf == config::SaveHf::never) return nullptr;
  std::shared_ptr<const model::KeptFiles> kept;
  comm::fail_together_on_root(world, [&] {
    const std::string from =
        path.empty() ? config::config_file(options.model.shape).string() : path;
    kept = std::make_shared<const model::KeptFiles>(
        model::KeptFiles::read(from, options.tokenizer_path()));
    if (const std::string what = kept->describe(); !what.empty()) log::detail(what);
  });
  return kept;
}

}  // namespace

zero::ReadRows ModelStart::reader() const {
  return [start = *this](size_t parameter, const base::Block& block, float* out) {
    if (start.weights) {
      model::load_parameter(start.spec, parameter, block, *start.weights, start.seed, out);
    } else {
      model::initial_values(start.spec, parameter, block, start.seed, out);
    }
  };
}

ModelStart trained_start(const config::Options& options, model::HeadKind head) {
  const auto seed = static_cast<uint64_t>(options.run.seed);
  ModelStart start =
      options.model.path.empty()
          ? ModelStart{model::describe(config::load_model_shape(options.model.shape), head),
                       nullptr, seed}
          : open(options.model.path, head, options.model.head_dtype, seed);
  start.spec.head_type = options.model.head_dtype;
  adapt(start, options.actor.lora, config::trained_folder(options), "actor.lora");
  model::freeze(start.spec, options.actor.freeze, "actor.freeze");
  return start;
}

ModelStart actor_start(const config::Options& options) {
  return trained_start(options, model::HeadKind::language);
}

CriticPath critic_path(const config::Options& options) {
  if (!options.critic.path.empty()) {
    const std::string problem = misread_tokens(options.critic.path, options);
    VALIDATE(problem.empty(), ExitCode::bad_data, "critic.path = ", options.critic.path, ": ",
             problem, ", so it cannot give them values: name a model with the policy's tokenizer");
    return {options.critic.path, {}};
  }
  if (options.critic.lora.wanted()) return {options.model.path, {}};
  CriticPath out;
  for (const auto& source : options.reward.source) {
    if (source.kind != config::RewardKind::model) continue;
    if (misread_tokens(source.path, options).empty()) return {source.path, {}};
    if (out.passed_over.empty()) out.passed_over = source.path;
  }
  out.path = options.model.path;
  return out;
}

ModelStart critic_start(const config::Options& options, const ModelStart& actor) {
  const uint64_t seed = static_cast<uint64_t>(options.run.seed) + 1;
  const std::string path = critic_path(options).path;
  ModelStart start = path.empty()
                         ? ModelStart{model::describe(actor.spec.shape, model::HeadKind::score),
                                      nullptr, actor.seed}
                         : open(path, model::HeadKind::score, options.model.head_dtype, seed);
  adapt(start, options.critic.lora, path.empty() ? options.model.shape : path, "critic.lora");
  if (config::critic_shares_base(options)) {
    const std::string &of_actor = options.actor.lora.path, &of_critic = options.critic.lora.path;
    if (!of_actor.empty()) model::require_shared_base(actor.spec, of_actor, start.spec);
    if (!of_critic.empty()) model::require_shared_base(start.spec, of_critic, actor.spec);
  }
  model::freeze(start.spec, options.critic.freeze, "critic.freeze");
  return start;
}

ModelStart reference_start(const config::Options& options, const ModelStart& actor) {
  if (options.reference.path.empty()) {
    ModelStart start = actor;
    if (start.spec.adapter) start.spec = model::without_adapter(start.spec);
    return start;
  }
  auto start =
      open(options.reference.path, model::HeadKind::language, options.model.head_dtype, actor.seed);
  VALIDATE(start.spec.shape.vocab == actor.spec.shape.vocab, ExitCode::bad_data,
           "reference.path = ", options.reference.path, " has a vocabulary of ",
           start.spec.shape.vocab, ", the actor of ", actor.spec.shape.vocab,
           ": the reference must share the actor's tokenizer");
  if (options.algo.distill.coef > 0) {
    const std::string problem = misread_tokens(options.reference.path, options);
    VALIDATE(problem.empty(), ExitCode::bad_data, "reference.path = ", options.reference.path, ": ",
             problem, ", so it cannot teach them: name a teacher with the student's tokenizer");
  }
  return start;
}

std::shared_ptr<const model::KeptFiles> files_for_exports(const config::Options& options,
                                                          const comm::CommView& world) {
  return files_of(options.model.path, options, world);
}

std::shared_ptr<const model::KeptFiles> critic_files_for_exports(const config::Options& options,
                                                                 const comm::CommView& world) {
  return files_of(critic_path(options).path, options, world);
}

void check_positions(const config::Options& options, const ModelStart& actor,
                     const std::optional<ModelStart>& critic) {
  const std::string key = options.model.max_len > 0 ? "model.max_len" : "data.max_len";
  std::vector<std::string> mistakes;
  const auto check = [&](const std::string& asked, int64_t length, const std::string& who,
                         int64_t positions) {
    if (length <= positions) return;
    mistakes.push_back(base::text(asked, " = ", length, " is more than the ", positions,
                                  " positions of ", who, ": set ", asked, " = ", positions,
                                  " or less"));
  };
  check(key, options.max_len(), "the actor (model.path or model.shape)",
        actor.spec.shape.longest());
  if (critic) {
    check(key, options.max_len(), "the critic (critic.path, else the first reward model)",
          critic->spec.shape.longest());
  }
  if (options.needs_reference() && !options.reference.path.empty()) {
    check(key, options.max_len(), base::text("reference.path = ", options.reference.path),
          positions_of(options.reference.path));
  }
  for (size_t i = 0; i < options.reward.source.size(); ++i) {
    const auto& source = options.reward.source[i];
    if (source.kind != config::RewardKind::model) continue;
    const std::string own = base::text("reward.source.", i, ".");
    const bool set = source.max_len > 0;
    check(set ? own + "max_len" : key, set ? source.max_len : options.max_len(),
          base::text(own, "path = ", source.path), positions_of(source.path));
  }
  if (mistakes.empty()) return;
  throw UserError(ExitCode::configuration, base::join(mistakes, "; "));
}

}  // namespace trireme::learn
