#include "trireme/plan/search.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include "trireme/base/error.hpp"
#include "trireme/config/placement.hpp"

namespace trireme::plan {
namespace {

// Who does what, as a deck says it.
struct Split {
  std::string text;
  config::RanksOptions ranks;
  config::RoleMap roles;
  bool together = false;  // trainers and generators have no rank in common
};

std::vector<Split> splits(const Job& job, int per_node) {
  const int world = static_cast<int>(job.node_of_rank.size());
  std::vector<Split> out;
  const auto add = [&](const std::string& trainer, const std::string& generator, bool together) {
    Split split{trainer.empty()
                    ? "colocated"
                    : base::text("ranks.trainer=", trainer, " ranks.generator=", generator),
                {trainer, generator, ""},
                {},
                together};
    split.roles = config::resolve_ranks(split.ranks, world, job.node_of_rank);
    out.push_back(std::move(split));
  };
  add("", "", false);
  const int unit = world > per_node ? per_node : 1;  // whole nodes where there are several
  for (int eighths = 2; eighths <= 6; ++eighths) {
    const int trainers = world * eighths / 8 / unit * unit;
    if (trainers == 0 || trainers == world || trainers * 8 != world * eighths) continue;
    add(std::to_string(trainers), std::to_string(world - trainers), true);
  }
  return out;
}

// One point of the search.
struct Choice {
  int degree = 1;
  int64_t micro_batch = 0, recompute = -1, shard_group = 0, async_depth = 0;
  double kv_share = 0.5;
  bool offload = false;
};

// `chosen`: by train.keep_memory, which goes before train.recompute.
std::string text_of(const Split& split, const Choice& c, bool reduce_once, bool chosen) {
  return base::text(
      split.text, " train.async_depth=", c.async_depth, " generate.tensor_parallel=", c.degree,
      " train.micro_batch_tokens=", c.micro_batch,
      chosen ? "" : base::text(" train.recompute=", c.recompute),
      " train.shard_group=", c.shard_group,
      " train.optimizer_offload=", c.offload ? "true" : "false",
      " train.reduce_once=", reduce_once ? "true" : "false", " generate.kv_memory=", c.kv_share);
}

std::vector<Choice> choices(const Job& job, const Split& split, int per_node) {
  std::vector<Choice> out;
  const bool chosen = job.options.train.keep_memory.has_value();
  const auto trainers = static_cast<int64_t>(split.roles.trainer.size());
  std::vector<int64_t> groups{0};
  for (const int64_t group : {int64_t{per_node}, int64_t{8} * per_node}) {
    if (group < trainers && trainers % group == 0) groups.push_back(group);
  }
  const int64_t widest =
      std::min<int64_t>(per_node, job.models.actor.shape.kv_heads);  // a KV head is never split
  for (int degree = 1; degree <= widest; degree *= 2) {
    if (split.roles.generator.size() % static_cast<size_t>(degree) != 0) continue;
    for (const int64_t tokens : {2048, 4096, 8192, 16384}) {
      if (tokens < job.options.max_len()) continue;
      for (const int64_t group : groups) {
        for (const int64_t recompute : {-1, 0}) {
          if (chosen && recompute == 0) continue;
          for (const int64_t depth : {0, 1}) {
            if (depth == 1 && !split.together) continue;
            if (depth == 0 && job.options.train.partial_rollout_enable) continue;
            for (const bool offload : {false, true}) {
              if (offload && job.machine.device_bytes == 0) continue;
              for (const double share : {0.5, 0.25})
                out.push_back({degree, tokens, recompute, group, depth, share, offload});
            }
          }
        }
      }
    }
  }
  return out;
}

// Whether the job would start.
bool is_placed(const config::Options& options, const config::RoleMap& roles) {
  try {
    config::check_placement(options, roles);
    return true;
  } catch (const UserError&) { return false; }
}

// Shorter, or as short and leaner.
bool better(const Candidate& a, const Candidate& b) {
  if (std::abs(a.time.total - b.time.total) > 1e-3 * b.time.total)
    return a.time.total < b.time.total;
  return a.fit.device.peak < b.fit.device.peak;
}

}  // namespace

SearchResult search(const Job& job, const CutActor& cut, size_t count) {
  SearchResult out;
  const auto per_node =
      static_cast<int>(std::count(job.node_of_rank.begin(), job.node_of_rank.end(), 0));
  std::map<int, base::ShardLayout> slices;  // by degree
  std::map<std::tuple<std::string, int64_t, int, int64_t, int64_t, bool>, Candidate> best;
  JobModels models = job.models;
  config::Options options = job.options;
  for (const Split& split : splits(job, per_node)) {
    options.ranks = split.ranks;
    for (const Choice& c : choices(job, split, per_node)) {
      options.train.micro_batch_tokens = c.micro_batch;
      options.train.shard_group = c.shard_group;
      options.train.async_depth = c.async_depth;
      options.train.optimizer_offload = c.offload;
      options.generate.tensor_parallel = c.degree;
      options.generate.kv_memory = {c.kv_share, 0};
      if (!is_placed(options, split.roles)) continue;
      auto found = slices.find(c.degree);
      if (found == slices.end()) found = slices.emplace(c.degree, cut(c.degree)).first;
      models.slices = found->second;
      // Whether it fits; the best of its kind is kept.
      const auto consider = [&](bool reduce_once) {
        options.train.reduce_once = reduce_once;
        options.train.recompute = c.recompute;
        const Job candidate{options,     split.roles, job.node_of_rank, models,
                            job.machine, job.compute, job.command};
        ++out.tried;
        const bool chosen = options.train.keep_memory.has_value();
        if (chosen) options.train.recompute = fewest_recomputed(candidate);
        Fit result = fit(candidate);
        if (!result.fits()) return false;
        ++out.fitting;
        Candidate point{text_of(split, c, reduce_once, chosen), std::move(result),
                        iteration_time(candidate)};
        // Micro-batch, KV share and how often gradients travel are means to an end: of those that
        // differ in nothing else one is shown, the leaner where times are equal.
        const auto key =
            std::tuple(split.text, c.async_depth, c.degree, c.recompute, c.shard_group, c.offload);
        const auto [place, fresh] = best.try_emplace(key, point);
        if (!fresh && better(point, place->second)) place->second = std::move(point);
        return true;
      };
      if (consider(false) && split.roles.trainer.size() > 1) consider(true);  // which takes memory
    }
  }
  for (auto& [key, candidate] : best) out.best.push_back(std::move(candidate));
  std::stable_sort(out.best.begin(), out.best.end(), [](const Candidate& a, const Candidate& b) {
    return a.time.total < b.time.total;
  });
  if (out.best.size() > count) out.best.resize(count);
  return out;
}

}  // namespace trireme::plan
