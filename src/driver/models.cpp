#include "driver/models.hpp"

#include <algorithm>

#include "trireme/machine/host_mirror.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/log.hpp"
#include "trireme/base/progress.hpp"
#include "trireme/comm/agree.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::driver {
namespace {

ModelStart open(const std::string& path, model::HeadKind head, uint64_t seed) {
  const trace::Region region{"open a model", trace::no_argument, trace::Category::io};
  const auto folder = model::open_model(path);
  ModelStart start{model::describe(folder.shape, head), folder.weights, seed};
  const auto allowed = head == model::HeadKind::score ? model::Missing::score_head : model::Missing::nothing;
  model::warn_unexpected(model::check_weights(start.spec, *start.weights, allowed), *start.weights);
  return start;
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
  if (options.model.path.empty()) return {model::describe(config::load_model_shape(options.model.shape), head), nullptr, seed};
  return open(options.model.path, head, seed);
}

ModelStart actor_start(const config::Options& options) { return trained_start(options, model::HeadKind::language); }

ModelStart critic_start(const config::Options& options, const ModelStart& actor) {
  const uint64_t seed = static_cast<uint64_t>(options.run.seed) + 1;
  std::string path = options.critic.path;
  for (const auto& source : options.reward.source) {
    if (path.empty() && source.kind == config::RewardKind::model) path = source.path;
  }
  if (path.empty()) path = options.model.path;
  if (!path.empty()) return open(path, model::HeadKind::score, seed);
  return {model::describe(actor.spec.shape, model::HeadKind::score), nullptr, actor.seed};
}

ModelStart reference_start(const config::Options& options, const ModelStart& actor) {
  if (options.reference.path.empty()) return actor;
  auto start = open(options.reference.path, model::HeadKind::language, actor.seed);
  VALIDATE(start.spec.shape.vocab == actor.spec.shape.vocab, ExitCode::bad_data, "reference.path = ", options.reference.path,
           " has a vocabulary of ", start.spec.shape.vocab, ", the actor of ", actor.spec.shape.vocab,
           ": the reference must share the actor's tokenizer");
  return start;
}

std::unique_ptr<zero::ShardedModel> make_sharded(const comm::Mesh& mesh, const model::ModelSpec& spec, at::Device device,
                                                 zero::ShardedModelOptions options) {
  const bool sums = options.training == zero::Training::trainable && mesh.size(comm::Axis::data) > 1;
  const auto copies = sums ? std::optional(mesh.along(comm::Axis::data)) : std::nullopt;
  return std::make_unique<zero::ShardedModel>(spec, mesh.along(comm::Axis::shard), copies, device, std::move(options));
}

void check_positions(const config::Options& options, const ModelStart& actor, const std::optional<ModelStart>& critic) {
  const std::string key = options.model.max_len > 0 ? "model.max_len" : "data.max_len";
  std::vector<std::string> mistakes;
  const auto check = [&](const std::string& asked, int64_t length, const std::string& who, int64_t positions) {
    if (length <= positions) return;
    mistakes.push_back(base::text(asked, " = ", length, " is more than the ", positions, " positions of ", who, ": set ", asked,
                                  " = ", positions, " or less"));
  };
  check(key, options.max_len(), "the actor (model.path or model.shape)", actor.spec.shape.max_positions);
  if (critic) {
    check(key, options.max_len(), "the critic (critic.path, else the first reward model)", critic->spec.shape.max_positions);
  }
  if (options.needs_reference() && !options.reference.path.empty()) {
    check(key, options.max_len(), base::text("reference.path = ", options.reference.path),
          config::load_model_shape(options.reference.path).max_positions);
  }
  for (size_t i = 0; i < options.reward.source.size(); ++i) {
    const auto& source = options.reward.source[i];
    if (source.kind != config::RewardKind::model) continue;
    const std::string own = base::text("reward.source.", i, ".");
    const bool set = source.max_len > 0;
    check(set ? own + "max_len" : key, set ? source.max_len : options.max_len(), base::text(own, "path = ", source.path),
          config::load_model_shape(source.path).max_positions);
  }
  if (mistakes.empty()) return;
  throw UserError(ExitCode::configuration, base::join(mistakes, "; "));
}

void export_model(const config::Options& options, const comm::Roles& roles, const model::ModelSpec& spec, zero::ShardedModel* model,
                  const std::filesystem::path& folder, model::StoredType type, Weights which) {
  const trace::Region region{"export", trace::no_argument, trace::Category::phase};
  model::ModelExport exported(folder, spec,
                              {.type = type, .tokenizer_from = options.tokenizer_path()});
  try {
    comm::fail_together_on_root(roles.world, [&] { exported.create(); });
    comm::fail_together(roles.world, [&] {
      if (model && roles.writes_shard()) {
        for (size_t p = 0; p < spec.parameters.size(); ++p) {
          const base::Block block = model->own(p);
          if (block.empty()) continue;
          machine::HostMirror host(model->state_device());  // one parameter at a time
          const float* shard = which == Weights::average ? model->average(p) : model->master(p);
          const auto* values = static_cast<const float*>(host.add(shard, block.elements() * int64_t{sizeof(float)}));
          host.to_host();
          exported.write(p, block, values);
          base::tick();
        }
      }
      exported.sync();
    });
    comm::fail_together_on_root(roles.world, [&] { exported.commit(); });
  } catch (const UserError&) {  // agreed: every rank is here
    if (roles.world.rank() == 0) exported.discard();
    throw;
  }
  if (roles.world.rank() == 0) log::info(base::text("model: ", folder.string(), " (Hugging Face layout)"));
}

}  // namespace trireme::driver
