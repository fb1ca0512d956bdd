// What one rank of a large job builds of the whole job before it computes anything: 4,096 ranks on
// 512 nodes, half of which train a model of 70B and half of which generate with it, and a rollout
// of 16,384 sequences. docs/dev/scale.md has the bytes of each.
#pragma once

#include <functional>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "trireme/config/placement.hpp"
#include "trireme/config/ranks.hpp"
#include "trireme/data/sampler.hpp"
#include "trireme/learn/exchange.hpp"
#include "trireme/learn/training_set.hpp"
#include "trireme/model/spec.hpp"
#include "trireme/plan/job.hpp"
#include "trireme/ppo/minibatches.hpp"
#include "trireme/weightsync/plan.hpp"
#include "unit/plan/layouts.hpp"

namespace trireme::test {

struct ScaleJob {
  static constexpr int ranks = 4096, ranks_of_node = 8, trainers = 2048, degree = 8;
  static constexpr int64_t sequences = 16384, prompts = 100'000, batch_size = 8192;

  ScaleJob() : node_of_rank(config::block_nodes(ranks, ranks_of_node)) {
    options.ranks.trainer = "0-2047";
    options.ranks.generator = "2048-4095";
    options.generate.tensor_parallel = degree;
    options.rollout.batch_size = sequences / 4;
    options.rollout.n_samples_per_prompt = 4;
    options.data.max_len = 2048;
    options.train.micro_batch_tokens = 4096;
    roles = config::resolve_ranks(options.ranks, ranks, node_of_rank);
    config::ModelShape shape;
    shape.layers = 80;
    shape.hidden = 8192;
    shape.heads = 64;
    shape.kv_heads = 8;
    shape.head_dim = 128;
    shape.ffn = 28672;
    shape.vocab = 128256;
    shape.max_positions = 8192;
    spec = model::describe(shape, model::HeadKind::language);
    models.actor = layout(spec);
    models.slices = model::tensor_parallel_layout(spec, degree);
    models.reference = models.actor;
    shards = base::ShardLayout::by_rows(spec.tensors(), trainers);
    for (int64_t i = 0; i < sequences; ++i)
      listed.push_back({static_cast<uint64_t>(i), 200 + (i * 7919) % 1801});
    owner = learn::spread_over(listed, roles.trainer);
  }

  weightsync::Members members() const {
    weightsync::Members out;
    out.sources = {roles.trainer};
    out.targets = config::replica_groups(roles.generator, node_of_rank, degree);
    out.node_of = node_of_rank;
    return out;
  }

  config::Options options;
  std::vector<int> node_of_rank;
  config::RoleMap roles;
  model::ModelSpec spec;
  plan::JobModels models;
  base::ShardLayout shards;
  learn::SequenceList listed;
  std::vector<int> owner;
};

struct ScalePiece {
  const char* name;
  std::function<std::shared_ptr<const void>(int rank)> build;
};

template <class T>
std::shared_ptr<const void> kept(T value) {
  return std::make_shared<const T>(std::move(value));
}

// `job` must outlive them.
inline std::vector<ScalePiece> scale_pieces(const ScaleJob& job) {
  return {
      {"role map, replicas and their places",
       [&](int) {
         auto roles = config::resolve_ranks(job.options.ranks, ScaleJob::ranks, job.node_of_rank);
         auto replicas =
             config::replica_groups(roles.generator, job.node_of_rank, ScaleJob::degree);
         auto text = config::describe_placement(job.options, roles, job.node_of_rank);
         auto advice = config::placement_warnings(job.options, roles, job.node_of_rank);
         return kept(
             std::tuple(std::move(roles), std::move(replicas), std::move(text), std::move(advice)));
       }},
      {"shards and slices of the model",
       [&](int) {
         return kept(std::pair(base::ShardLayout::by_rows(job.spec.tensors(), ScaleJob::trainers),
                               model::tensor_parallel_layout(job.spec, ScaleJob::degree)));
       }},
      {"plan of the weight sync",
       [&](int rank) {
         return kept(weightsync::make_plan(job.shards, job.models.slices, job.members(), rank));
       }},
      {"memory ledger",
       [&](int rank) {
         return kept(plan::memory_of_rank(
             {job.options, job.roles, job.node_of_rank, job.models, *plan::known_machine("h100")},
             rank));
       }},
      {"order of the prompts",
       [&](int) {
         data::PromptSampler sampler({.sizes = {ScaleJob::prompts}, .weights = {}, .seed = 1});
         auto drawn = sampler.draw(job.options.rollout.batch_size);
         return kept(std::pair(std::move(sampler), std::move(drawn)));
       }},
      {"list of the sequences",
       [&](int) { return kept(std::pair(job.listed, learn::lengths_of(job.listed))); }},
      {"trainer of each sequence",
       [&](int) { return kept(learn::spread_over(job.listed, job.roles.trainer)); }},
      {"optimizer steps of an epoch",
       [&](int) {
         ppo::PlanInput input;
         input.lengths = learn::lengths_of(job.listed);
         input.owner = job.owner;
         input.ranks = ScaleJob::trainers;
         input.batch_size = ScaleJob::batch_size;
         input.micro_batch_tokens = job.options.train.micro_batch_tokens;
         return kept(ppo::plan_epoch(input));
       }},
      {"shares of supervised rows",
       [&](int rank) {
         return kept(learn::share_of(learn::lengths_of(job.listed), ScaleJob::trainers,
                                     rank % ScaleJob::trainers));
       }},
  };
}

}  // namespace trireme::test
