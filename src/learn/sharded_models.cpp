#include "torch/torch.hpp"

#include "trireme/learn/sharded_models.hpp"

#include <optional>
#include <utility>
#include <vector>

#include "trireme/base/error.hpp"
#include "trireme/base/log.hpp"
#include "trireme/base/progress.hpp"
#include "trireme/comm/agree.hpp"
#include "trireme/machine/host_mirror.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::learn {

std::unique_ptr<zero::ShardedModel> make_sharded(const comm::Mesh& mesh,
                                                 const model::ModelSpec& spec, at::Device device,
                                                 zero::ShardedModelOptions options) {
  const bool sums = spec.is_trainable() && mesh.size(comm::Axis::data) > 1;
  const auto copies = sums ? std::optional(mesh.along(comm::Axis::data)) : std::nullopt;
  return std::make_unique<zero::ShardedModel>(spec, mesh.along(comm::Axis::shard), copies, device,
                                              std::move(options));
}

zero::ShardedModelOptions trained_options(const config::Options& options, const comm::Roles& roles,
                                          const model::ModelSpec& spec,
                                          const machine::MemoryCheck& memory) {
  return {.name = "actor",
          .compute = options.model.compute(),
          .recompute = memory.recompute(options.train.recompute, spec.shape.layers),
          .node_weights = options.train.node_weights,
          .reduce = options.train.reduce_dtype,
          .reduce_once = options.train.reduce_once,
          .offload = options.train.optimizer_offload,
          .seed = static_cast<uint64_t>(options.run.seed),
          .rings = roles.rings};
}

std::unique_ptr<zero::ShardedModel> make_reference(const config::Options& options,
                                                   const comm::Roles& roles,
                                                   const ModelStart& start, at::Device device) {
  auto reference = make_sharded(roles.trainers, model::frozen(start.spec), device,
                                {.name = "reference",
                                 .compute = options.model.compute(),
                                 .node_weights = options.train.node_weights,
                                 .rings = roles.rings});
  reference->load(start.reader());
  return reference;
}

void export_model(const comm::Roles& roles, const ModelStart& start, zero::ShardedModel* model,
                  const std::filesystem::path& folder, const model::ModelExport::Options& how,
                  Weights which) {
  const trace::Region region{"export", trace::no_argument, trace::Category::phase};
  const model::ModelSpec& spec = start.spec;
  model::ModelExport exported(folder, spec, how);
  try {
    comm::fail_together_on_root(roles.world, [&] { exported.create(); });
    comm::fail_together(roles.world, [&] {
      if (model && roles.writes_shard()) {
        const zero::ReadRows began = start.reader();
        std::vector<float> rows;
        for (size_t p = 0; p < spec.parameters.size(); ++p) {
          const base::Block block = model->own(p);
          if (block.empty() || !exported.has(p)) continue;
          base::tick();
          if (!spec.parameters[p].trainable) {
            rows.resize(static_cast<size_t>(block.elements()));
            began(p, block, rows.data());
            exported.write(p, block, rows.data());
            continue;
          }
          machine::HostMirror host(model->state_device());  // one parameter at a time
          const auto shard = which == Weights::average ? model->average(p) : model->master(p);
          const float* values = host.add(shard, block.elements() * int64_t{sizeof(float)});
          host.to_host();
          exported.write(p, block, values);
        }
      }
      exported.sync();
    });
    comm::fail_together_on_root(roles.world, [&] { exported.commit(); });
  } catch (const UserError&) {  // agreed: every rank is here
    if (roles.world.rank() == 0) exported.discard();
    throw;
  }
  if (roles.world.rank() == 0)
    log::info(base::text(spec.adapter ? "adapter: " : "model: ", folder.string(),
                         spec.adapter ? " (as peft stores it)" : " (Hugging Face layout)"));
}

}  // namespace trireme::learn
