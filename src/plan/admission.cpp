#include "trireme/plan/admission.hpp"

#include <algorithm>
#include <cstdio>
#include <map>
#include <utility>

#include "trireme/base/checked.hpp"
#include "trireme/base/error.hpp"
#include "trireme/config/placement.hpp"

namespace trireme::plan {
namespace {

std::string gigabytes(int64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f GB", static_cast<double>(bytes) * 1e-9);
  return text;
}

constexpr size_t at(Phase phase) { return static_cast<size_t>(phase); }

Pool make_pool(std::span<const RankNeed> all, Place place, std::vector<int> ranks) {
  Pool pool{.place = place, .ranks = std::move(ranks)};
  const auto needs = [&](int rank) -> const RankNeed& { return all[static_cast<size_t>(rank)]; };
  for (int i = 0; i < phase_count; ++i) {
    const auto phase = static_cast<Phase>(i);
    int64_t sum = 0, estimated = 0;
    for (const int rank : pool.ranks) {
      sum = base::checked_add(sum, place == Place::device ? needs(rank).device[at(phase)]
                                                          : needs(rank).host[at(phase)]);
      estimated += place == Place::device ? needs(rank).device_estimated[at(phase)]
                                          : needs(rank).host_estimated[at(phase)];
    }
    if (sum > pool.need)
      std::tie(pool.phase, pool.need, pool.estimated) = std::tuple(phase, sum, estimated);
  }
  int64_t most = -1;
  for (const int rank : pool.ranks) {
    pool.free = std::min(pool.free,
                         place == Place::device ? needs(rank).device_free : needs(rank).host_free);
    const int64_t mine = place == Place::device ? needs(rank).device[at(pool.phase)]
                                                : needs(rank).host[at(pool.phase)];
    if (mine > most) std::tie(pool.fullest, most) = std::pair(rank, mine);
  }
  return pool;
}

// One step of a change: its name and its effect on the job.
struct Change {
  std::string text;
  std::function<void(config::Options&)> options;
  config::DType compute = config::DType::bf16;
  bool narrows = false;  // to bf16
  int more_nodes = 1;
  int degree = 0;  // 0: as it is
};

std::vector<Change> single_changes(const Job& job) {
  const config::Options& now = job.options;
  std::vector<Change> out;
  for (int64_t tokens = training_tokens(job) / 2; tokens >= std::max<int64_t>(now.max_len(), 64);
       tokens /= 2) {
    out.push_back({base::text("train.micro_batch_tokens=", tokens),
                   [tokens](auto& o) { o.train.micro_batch_tokens = tokens; }});
  }
  const bool ppo = job.command == config::Command::ppo;
  if (ppo) {
    for (const double share : {0.25, 0.1}) {
      if (now.generate.kv_memory.bytes == 0 && now.generate.kv_memory.fraction <= share) continue;
      out.push_back({base::text("generate.kv_memory=", share), [share](auto& o) {
                       o.generate.kv_memory = {share, 0};
                     }});
    }
    if (now.generate.weights == config::RolloutWeights::int8) {
      out.push_back({"generate.weights=model",
                     [](auto& o) { o.generate.weights = config::RolloutWeights::model; }});
    }
    if (job.machine.device_bytes > 0 && now.generate.graphs)
      out.push_back({"generate.graphs=false", [](auto& o) { o.generate.graphs = false; }});
    if (job.keeps_caches)
      out.push_back(
          {"generate.keep_kv_memory=false", [](auto& o) { o.generate.keep_kv_memory = false; }});
  }
  if (job.machine.device_bytes > 0 && !now.train.optimizer_offload) {
    out.push_back(
        {"train.optimizer_offload=true", [](auto& o) { o.train.optimizer_offload = true; }});
  }
  if (job.machine.device_bytes == 0 && now.train.node_weights) {
    out.push_back({"train.node_weights=false", [](auto& o) { o.train.node_weights = false; }});
  }
  if (job.machine.device_bytes == 0 && now.train.logits_memory.count > 0) {
    out.push_back({"train.logits_memory=0", [](auto& o) { o.train.logits_memory = {}; }});
  }
  if (now.train.reduce_once)
    out.push_back({"train.reduce_once=false", [](auto& o) { o.train.reduce_once = false; }});
  if (now.train.recompute >= 0)
    out.push_back({"train.recompute=-1", [](auto& o) { o.train.recompute = -1; }});
  if (now.train.shard_group > 0)
    out.push_back({"train.shard_group=0", [](auto& o) { o.train.shard_group = 0; }});
  if (now.train.enable_ema)
    out.push_back({"train.enable_ema=false", [](auto& o) { o.train.enable_ema = false; }});
  if (job.compute == config::DType::f32)
    out.push_back({"model.dtype=bf16", [](auto&) {}, config::DType::bf16, true});
  const auto per_node =
      static_cast<int>(std::count(job.node_of_rank.begin(), job.node_of_rank.end(), 0));
  const int64_t widest =
      std::min<int64_t>(per_node, job.models.actor.shape.kv_heads);  // a KV head is never split
  for (int degree = 2 * static_cast<int>(now.generate.tensor_parallel); ppo && degree <= widest;
       degree *= 2) {
    Change change{base::text("generate.tensor_parallel=", degree),
                  [degree](auto& o) { o.generate.tensor_parallel = degree; }};
    change.degree = degree;
    out.push_back(std::move(change));
  }
  const int nodes = *std::max_element(job.node_of_rank.begin(), job.node_of_rank.end()) + 1;
  for (int times = 2; times <= 64; times *= 2) {
    Change change{base::text(times * nodes, " nodes instead of ", nodes), [](auto&) {}};
    change.more_nodes = times;
    out.push_back(std::move(change));
  }
  return out;
}

// The job with these changes; none where they are not possible together.
std::optional<Fit> fit_with(const Job& job, const CutActor& cut,
                            std::span<const Change* const> changes) {
  config::Options options = job.options;
  config::DType compute = job.compute;
  std::vector<int> nodes(job.node_of_rank.begin(), job.node_of_rank.end());
  JobModels models = job.models;
  config::RoleMap roles = job.roles;
  for (const Change* change : changes) {
    change->options(options);
    if (change->narrows) compute = change->compute;
    if (change->degree > 0) models.slices = cut(change->degree);
    if (change->more_nodes > 1) {
      const int per_node = static_cast<int>(std::count(nodes.begin(), nodes.end(), 0));
      nodes = config::block_nodes(static_cast<int>(nodes.size()) * change->more_nodes, per_node);
    }
  }
  try {
    if (nodes.size() != job.node_of_rank.size())
      roles = config::resolve_ranks(options.ranks, static_cast<int>(nodes.size()), nodes);
    if (job.command == config::Command::ppo) config::check_placement(options, roles);
  } catch (const UserError&) { return std::nullopt; }
  return fit({options, roles, nodes, models, job.machine, compute, job.command,
              job.keeps_caches && options.generate.keep_kv_memory, job.own_kernels,
              job.process_started, job.threads, job.host_bf16, job.length});
}

}  // namespace

RankNeed need_of(const Ledger& ledger) {
  RankNeed out;
  for (int i = 0; i < phase_count; ++i) {
    const auto phase = static_cast<Phase>(i);
    out.device[at(phase)] = ledger.bytes(Place::device, phase);
    out.host[at(phase)] = ledger.bytes(Place::host, phase);
    out.device_estimated[at(phase)] = ledger.bytes(Place::device, phase, Accuracy::estimate);
    out.host_estimated[at(phase)] = ledger.bytes(Place::host, phase, Accuracy::estimate);
  }
  return out;
}

std::vector<Pool> pools_of(std::span<const RankNeed> ranks) {
  std::vector<Pool> out;
  for (const Place place : {Place::device, Place::host}) {
    std::map<uint64_t, std::vector<int>> members;
    std::vector<uint64_t> order;
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      const uint64_t pool =
          place == Place::device ? ranks[rank].device_pool : ranks[rank].host_pool;
      if (members[pool].empty()) order.push_back(pool);
      members[pool].push_back(static_cast<int>(rank));
    }
    for (const uint64_t pool : order) {
      Pool made = make_pool(ranks, place, std::move(members[pool]));
      if (made.need > 0) out.push_back(std::move(made));
    }
  }
  return out;
}

int64_t fewest_recomputed(int64_t layers, const config::MemoryShare& budget,
                          const std::function<std::vector<Pool>(int64_t recompute)>& pools_with) {
  const std::vector<Pool> least = pools_with(layers);
  const auto fits = [&](int64_t recompute) {
    const std::vector<Pool> pools = pools_with(recompute);
    for (size_t i = 0; i < pools.size(); ++i) {
      const int64_t left =
          least[i].free == free_unknown ? 0 : std::max<int64_t>(least[i].free - least[i].need, 0);
      const auto allowed = budget.bytes > 0
                               ? std::min(left, budget.bytes * std::ssize(least[i].ranks))
                               : static_cast<int64_t>(budget.fraction * static_cast<double>(left));
      if (pools[i].need - least[i].need > allowed) return false;
    }
    return true;
  };
  int64_t fewest = 0, fitting = layers;
  while (fewest < fitting) {
    const int64_t middle = (fewest + fitting) / 2;
    if (fits(middle)) {
      fitting = middle;
    } else {
      fewest = middle + 1;
    }
  }
  return fitting;
}

int64_t fewest_recomputed(const Job& job) {
  config::Options options = job.options;
  const Job varied{options,         job.roles,           job.node_of_rank, job.models,
                   job.machine,     job.compute,         job.command,      job.keeps_caches,
                   job.own_kernels, job.process_started, job.threads,      job.host_bf16,
                   job.length};
  const auto pools_with = [&](int64_t recompute) {
    options.train.recompute = recompute;
    std::vector<RankNeed> ranks;
    for (const RoleKind& kind : role_kinds(varied)) {
      RankNeed need = need_of(memory_of_rank(varied, kind.first));
      if (job.machine.device_bytes > 0) need.device_free = job.machine.device_bytes;
      if (job.machine.host_bytes > 0) need.host_free = job.machine.host_bytes;
      for (size_t node = 0; node < kind.ranks_on_node.size(); ++node) {
        for (int i = 0; i < kind.ranks_on_node[node]; ++i) {
          need.host_pool = node;
          need.device_pool = ranks.size();
          ranks.push_back(need);
        }
      }
    }
    return pools_of(ranks);
  };
  return fewest_recomputed(job.models.actor.shape.layers, job.options.train.keep_memory.value(),
                           pools_with);
}

std::string describe_kept(int64_t kept, int64_t layers) {
  return base::text(
      kept, " of ", layers,
      " blocks keep their activations (train.keep_memory), the others are computed again");
}

CachesBesideTraining caches_beside_training(const Job& job) {
  Job kept = job, given_back = job;
  kept.keeps_caches = true;
  given_back.keeps_caches = false;
  CachesBesideTraining out{.wanted = job.options.generate.keep_kv_memory};
  const bool devices = job.machine.device_bytes > 0;
  const Place place = devices ? Place::device : Place::host;
  for (const RoleKind& kind : role_kinds(job)) {
    const auto bytes = [&](const Job& one) {
      return memory_of_rank(one, kind.first).bytes(place, Phase::backward);
    };
    out.bytes = std::max(out.bytes, bytes(kept) - bytes(given_back));
  }
  if (out.bytes == 0 || !out.wanted) return out;
  const Fit fits = fit(kept);
  const int64_t need = devices ? fits.device.peak : fits.node_bytes,
                memory = devices ? job.machine.device_bytes : job.machine.host_bytes;
  out.stay = memory > 0 && memory != free_unknown && need <= memory - memory / 10;
  return out;
}

std::string describe(const CachesBesideTraining& caches) {
  const std::string what = base::text(
      "KV pages of at most ", base::human_bytes(static_cast<double>(caches.bytes)), " a rank ");
  if (caches.stay) return what + "stay where they are while trainers of the rank work";
  return what + "are given back while trainers of the rank work (" +
         (caches.wanted ? "beside them they would leave less than a tenth of the memory)"
                        : "generate.keep_kv_memory = false)");
}

int worst_pool(std::span<const Pool> pools) {
  int worst = -1;
  for (size_t i = 0; i < pools.size(); ++i) {
    if (pools[i].fits()) continue;
    const auto lack = [&](size_t p) { return pools[p].need - pools[p].free; };
    if (worst < 0 || lack(i) > lack(static_cast<size_t>(worst))) worst = static_cast<int>(i);
  }
  return worst;
}

std::string describe(const Pool& pool) {
  return base::text("planned peak ", gigabytes(pool.need), " of ",
                    pool.free == free_unknown ? "an unknown amount" : gigabytes(pool.free),
                    " free (", pool.place == Place::device ? "a GPU, " : "host memory, ",
                    pool.ranks.size() == 1 ? "rank " : "ranks ", config::rank_ranges(pool.ranks),
                    ", in ", to_string(pool.phase), "; ", gigabytes(pool.estimated),
                    " of it estimated from shapes)");
}

std::string contributors(const Ledger& ledger, Place place, Phase phase, size_t count) {
  std::string out;
  for (const Entry& entry : ledger.largest(place, phase, count)) {
    out += base::text(out.empty() ? "" : "\n", "  ", gigabytes(entry.bytes),
                      entry.accuracy == Accuracy::estimate ? " ~ " : "   ", entry.owner, ": ",
                      entry.what);
  }
  return out;
}

std::vector<Remedy> nearest_fits(const Job& job, const CutActor& cut, size_t count) {
  const std::vector<Change> changes = single_changes(job);
  std::vector<Remedy> out;
  const auto try_changes = [&](std::vector<const Change*> together) {
    if (out.size() >= count) return;
    const auto result = fit_with(job, cut, together);
    if (!result || !result->fits()) return;
    std::string text;
    for (const Change* change : together) text += (text.empty() ? "" : " and ") + change->text;
    out.push_back({text, *result});
  };
  // Of one key only the smallest step that helps.
  const auto key = [](const Change& change) {
    return change.more_nodes > 1 ? std::string("nodes")
                                 : change.text.substr(0, change.text.find('='));
  };
  std::map<std::string, bool> helped;
  for (const Change& change : changes) {
    if (helped[key(change)]) continue;
    const size_t before = out.size();
    try_changes({&change});
    helped[key(change)] = out.size() > before;
  }
  if (!out.empty()) return out;
  for (size_t i = 0; i < changes.size(); ++i) {
    for (size_t j = i + 1; j < changes.size(); ++j) {
      if (key(changes[i]) != key(changes[j]) && !helped[key(changes[i])]) {
        const size_t before = out.size();
        try_changes({&changes[i], &changes[j]});
        helped[key(changes[i])] = out.size() > before;
      }
    }
  }
  return out;
}

}  // namespace trireme::plan
