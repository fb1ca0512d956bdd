#include "trireme/plan/time_model.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "plan/groups.hpp"
#include "plan/judge_bytes.hpp"
#include "trireme/config/models_of.hpp"
#include "trireme/config/placement.hpp"

namespace trireme::plan {
namespace {

// Bytes/s of a rank in a collective over `ranks`: the node's links inside a node, else what a node
// sends, of which every byte crosses once.
double collective_speed(const Machine& machine, int ranks, int per_node) {
  if (ranks <= per_node) return machine.node_link * link_share;
  return std::min(machine.network * per_node, machine.node_link) * link_share;
}

double overlapped(double a, double b) { return std::max(a, b) + overlap_loss * std::min(a, b); }

// `forwards`: passes through the operators, of which backward is two. `bytes`: that a parameter
// sends.
double pass(const Machine& machine, const TrainingWork& w, double forwards, double bytes) {
  const ModelWork& m = w.model;
  const double share = w.recompute || forwards < 2 ? compute_share_recomputed : compute_share;
  const double work = forwards * (2 * m.parameters + 4 * m.layers * m.attention * w.length) *
                      w.tokens / w.tensor_parallel;
  double compute = work / (machine.flops * share);
  if (w.tensor_parallel > 1) {  // two sums over the ranks in each pass through a block
    const double t = w.tensor_parallel;
    const double passes =
        std::max(1.0, forwards - 1);  // backward is two forwards' work, but sums as often as one
    const double sums = passes * 2 * m.layers *
                        (reduce_latency + 2 * (t - 1) / t * w.tokens * m.hidden * 2 /
                                              (machine.node_link * link_share));
    compute = w.overlaps_tensor_parallel ? overlapped(compute, sums) : compute + sums;
  }
  const double ranks = w.ranks;
  const double speed = w.tensor_parallel > 1 ? machine.network * link_share
                                             : collective_speed(machine, w.ranks, w.per_node);
  const double exchange = bytes * m.parameters / w.tensor_parallel * (ranks - 1) / ranks / speed +
                          collective_latency * (ranks - 1) * (bytes > 2 ? 3 : 1) * (m.layers + 1);
  return overlapped(compute, exchange + w.messages);
}

double step_seconds(const Machine& machine, const GenerationWork& w, double batch, double context,
                    double new_inputs) {
  const ModelWork& m = w.model;
  const double t = w.tensor_parallel;
  const double peak = machine.flops * (w.weight_bytes < 2 ? 2 : 1) * product_share;
  const double memory = machine.memory_speed * stream_share;
  const double prefill =
      new_inputs * (2 * m.parameters + 2 * m.layers * m.attention * w.input) / t / peak;
  double seconds = m.parameters * w.weight_bytes / t / memory +
                   2 * m.parameters * batch / t / peak + batch * context * m.kv_bytes / t / memory +
                   prefill;
  if (t > 1) {
    const double rows = batch + new_inputs;
    seconds +=
        2 * m.layers *
        (reduce_latency + 2 * (t - 1) / t * rows * m.hidden * 2 / (machine.node_link * link_share));
  }
  return seconds;
}

double batch_of(const Machine& machine, const GenerationWork& w) {
  const double t = w.tensor_parallel;
  const double weights = w.model.parameters * w.weight_bytes / t;
  const double cache =
      w.cache_bytes > 0 ? w.cache_bytes
                        : cache_share * static_cast<double>(machine.device_bytes) - weights - 2e9;
  const double held = cache / (w.model.kv_bytes / t * (w.input + 0.5 * w.output));
  return std::max(1.0, std::min(w.max_batch, held));
}

}  // namespace

ModelWork work_of(const ModelLayout& model, double kv_element_bytes) {
  const config::ModelShape& shape = model.shape;
  return {static_cast<double>(elements(model)),
          static_cast<double>(shape.layers),
          static_cast<double>(shape.hidden),
          static_cast<double>(shape.q_dim()),
          2.0 * static_cast<double>(shape.layers * shape.kv_dim()) * kv_element_bytes,
          static_cast<double>(trainable_elements(model)) / static_cast<double>(elements(model)),
          backward_shares(model)};
}

double pass_seconds(const Machine& machine, const TrainingWork& work) {
  const ModelWork& m = work.model;
  return pass(machine, work, 1 + (work.recompute ? 2 : 1) * m.backward.inputs + m.backward.weights,
              2 + 2 * m.backward.inputs +
                  m.trainable * work.reduced_bytes);  // bf16 weights twice, gradients once
}

double forward_seconds(const Machine& machine, const TrainingWork& work) {
  return pass(machine, work, 1, 2);
}

double optimizer_seconds(const Machine& machine, const ModelWork& model, int ranks, bool offload) {
  const double elements = model.trainable * model.parameters / ranks;
  const double copies = offload ? 2 * 12 * elements / (machine.host_link * link_share)
                                : 0;  // fp32 weights and two moments, to the GPU and back
  return 28 * elements / machine.memory_speed + copies;
}

Generation generation(const Machine& machine, const GenerationWork& work) {
  Generation out;
  out.batch = batch_of(machine, work);
  const double coming = out.batch * work.input /
                        work.output;  // prompt tokens a step: as many sequences come in as end
  out.step = step_seconds(machine, work, out.batch, work.input + 0.5 * work.output, coming);
  out.tokens_per_second = out.batch / out.step;
  return out;
}

double rollout_seconds(const Machine& machine, const GenerationWork& work, double sequences,
                       double longest) {
  const double batch = std::min(batch_of(machine, work), sequences);
  const double full = sequences * work.output / batch;  // steps of a batch that is kept full
  const double tail = std::max(0.0, longest - work.output);
  const double context = work.input + 0.5 * work.output;
  const double coming = batch * work.input / work.output;
  return full * step_seconds(machine, work, batch, context, coming) +
         tail * step_seconds(machine, work, 1, work.input + longest, 0);
}

double sync_seconds(const Machine& machine, double bytes, int trainers, int tensor_parallel,
                    int per_node) {
  const double out = bytes / trainers, in = bytes / std::max(tensor_parallel, per_node);
  return std::max(out, in) / (machine.network * link_share);
}

double device_sync_seconds(const Machine& machine, double bytes, const DeviceSync& sync) {
  const double slice = bytes / sync.tensor_parallel, link = machine.node_link * link_share;
  double copies = sync.replicas, seconds = 0;  // of a shard that its trainer sends
  if (sync.one_node) {
    seconds = std::max(bytes * copies / sync.trainers, slice) / link;
  } else {
    const double on_node =
        std::ceil(static_cast<double>(sync.replicas * sync.tensor_parallel) / sync.generator_nodes);
    copies = sync.generator_nodes > sync.trainer_nodes ? 1 : sync.generator_nodes;
    const double in = bytes / std::max<double>(sync.tensor_parallel, on_node);
    seconds =
        std::max(std::max(bytes * copies / sync.trainers, in) / (machine.network * link_share),
                 (slice - in) / link);
  }
  const double packed = 2 * (bytes * copies / sync.trainers + slice);
  return overlapped(seconds, packed / (machine.memory_speed * stream_share));
}

double gathered_sync_seconds(const Machine& machine, double bytes, int stages, int trainers,
                             int tensor_parallel, int per_node) {
  const double others = trainers - 1;
  const double gathers = bytes * others / trainers / collective_speed(machine, trainers, per_node) +
                         collective_latency * others * stages;
  const double copies = 2 * bytes / tensor_parallel / (machine.memory_speed * stream_share);
  return overlapped(gathers, copies);
}

namespace {

// Shared by the phases of iteration_time.
struct Shape {
  const Job& job;
  int per_node = 1;
  double input = 0, output = 0, sequences = 0;

  explicit Shape(const Job& j) : job(j) {
    per_node = static_cast<int>(std::count(j.node_of_rank.begin(), j.node_of_rank.end(), 0));
    const MeanLengths lengths = mean_lengths(j.options);
    input = lengths.input;
    output = lengths.output;
    sequences = static_cast<double>(j.options.sequences_per_iteration());
  }
  double tokens() const { return sequences * (input + output); }
  double reduced_bytes() const {
    return static_cast<double>(config::bytes_per_element(job.options.train.reduce_dtype));
  }

  TrainingWork pass(const ModelLayout& model, int ranks, int64_t micro_batch) const {
    return {.model = work_of(model, 2),
            .length = input + output,
            .tokens = static_cast<double>(micro_batch),
            .ranks = ranks,
            .per_node = per_node,
            .reduced_bytes = reduced_bytes()};
  }
  // All tokens of the iteration through `ranks`, of which `group` cut the model.
  double scores(const ModelLayout& model, int ranks, int group, int64_t micro_batch) const {
    const double passes = std::ceil(tokens() / ranks / static_cast<double>(micro_batch));
    return passes * forward_seconds(job.machine, pass(model, group, micro_batch));
  }
  // Of a model's blocks, those that are computed again.
  double recomputed(const ModelLayout& model) const {
    const auto layers = static_cast<double>(model.shape.layers),
               wish = static_cast<double>(job.options.train.recompute);
    return wish < 0 ? 1 : std::min(wish / layers, 1.0);
  }
  double trains(const ModelLayout& model, int ranks, int group) const {
    const int64_t micro_batch = training_tokens(job);
    const double steps = std::ceil(sequences / static_cast<double>(job.options.train.batch_size));
    const double passes = std::ceil(tokens() / steps / ranks / static_cast<double>(micro_batch));
    TrainingWork kept = pass(model, group, micro_batch);
    if (job.options.train.reduce_once) kept.reduced_bytes /= passes;
    TrainingWork work = kept;
    kept.recompute = false;
    work.recompute = true;
    const double share = recomputed(model);
    const auto pass_with = [&](double messages) {
      work.messages = kept.messages = messages;
      return share * pass_seconds(job.machine, work) +
             (1 - share) * pass_seconds(job.machine, kept);
    };
    double step = passes * pass_with(0) + optimizer_seconds(job.machine, work.model, group,
                                                            job.options.train.optimizer_offload);
    if (group < ranks) {  // gradients are summed over the copies, by devices in the last pass
      const double copies = static_cast<double>(ranks) / group;
      const double sums = 2 * reduced_bytes() * work.model.trainable * work.model.parameters /
                          group * (copies - 1) / copies / (job.machine.network * link_share);
      step += job.machine.device_bytes > 0 ? pass_with(sums) - pass_with(0) : sums;
    }
    return static_cast<double>(job.options.train.max_epochs) * steps * step;
  }
  double syncs(const ModelWork& model, int trainers, int group, int degree) const {
    const SyncWay way = sync_way(job);
    if (way == SyncWay::gathers) {
      const auto stages = static_cast<int>(job.models.actor.shape.layers) + 2;
      return gathered_sync_seconds(job.machine, 2 * model.parameters, stages, group, degree,
                                   per_node);
    }
    const double bytes = 2 * model.trainable * model.parameters;
    if (way == SyncWay::messages)
      return device_sync_seconds(job.machine, bytes, places_of_sync(trainers, degree));
    const double network = sync_seconds(job.machine, bytes, trainers, degree, per_node);
    return job.machine.device_bytes > 0
               ? std::max(network, bytes / std::min(trainers, degree) / host_bucket_speed)
               : network;
  }
  DeviceSync places_of_sync(int trainers, int degree) const {
    const auto nodes = [&](const std::vector<int>& ranks) {
      std::set<int> out;
      for (const int rank : ranks) out.insert(job.node_of_rank[static_cast<size_t>(rank)]);
      return out;
    };
    const auto of_trainers = nodes(job.roles.trainer), of_generators = nodes(job.roles.generator);
    const auto generators = static_cast<int>(job.roles.generator.size());
    return {.trainers = trainers,
            .tensor_parallel = degree,
            .replicas = std::max(1, generators / degree),
            .trainer_nodes = static_cast<int>(of_trainers.size()),
            .generator_nodes = static_cast<int>(of_generators.size()),
            .one_node = of_trainers.size() == 1 && of_trainers == of_generators};
  }
};

// Votes on `answers` of `length` tokens by a reward rank.
double judging_seconds(const Job& job, double answers, double length) {
  const std::vector<config::JudgeModel> judges = config::judge_models(job.options);
  double seconds = 0;
  for (size_t i = 0; i < std::min(judges.size(), job.models.judges.size()); ++i) {
    const Votes votes = votes_on_answer(job.options, judges[i]);
    const config::ModelShape& shape = job.models.judges[i].model.shape;
    const GenerationWork work{.model = work_of(job.models.judges[i].model, 2),
                              .input = length,
                              .output = votes.length,
                              .max_batch = static_cast<double>(judges[i].max_batch),
                              .cache_bytes = static_cast<double>(judge_cache_bytes(
                                  judges[i], shape, config::bytes_per_element(job.compute)))};
    seconds += rollout_seconds(job.machine, work, std::ceil(answers * votes.number), work.output);
  }
  return seconds;
}

}  // namespace

IterationTime iteration_time(const Job& job) {
  const Shape shape(job);
  const auto trainers = static_cast<int>(job.roles.trainer.size()),
             judges = static_cast<int>(job.roles.reward.size());
  const auto degree = static_cast<int>(job.options.generate.tensor_parallel);
  const int replicas = std::max(1, static_cast<int>(job.roles.generator.size()) / degree);
  const auto wish = static_cast<int>(job.options.train.shard_group);
  const int group = wish > 0 && wish < trainers ? wish : trainers;
  IterationTime out;
  GenerationWork gen{.model = work_of(job.models.actor, 2),
                     .input = shape.input,
                     .output = shape.output,
                     .tensor_parallel = degree,
                     .max_batch = static_cast<double>(job.options.generate.max_batch)};
  const Ledger ledger = memory_of_rank(job, job.roles.generator.front());
  for (const Entry& entry : ledger.entries()) {
    if (entry.owner == "generator" && entry.what == "KV pages")
      gen.cache_bytes = static_cast<double>(entry.bytes);
  }
  out.rollout =
      rollout_seconds(job.machine, gen, std::ceil(shape.sequences / replicas), shape.output);
  const int64_t scored = scoring_tokens(job, trainers);
  const int judging = config::reward_shard_size(job.options, job.roles);
  const bool in_steps = config::trainers_have_reference(job.options, job.command);
  if (job.models.reference && !in_steps)
    out.reward += shape.scores(*job.models.reference, judges, judging, scoring_tokens(job, judges));
  for (size_t i = 0; i < job.models.reward_models.size(); ++i)
    out.reward +=
        shape.scores(job.models.reward_models[i], judges, judging, reward_pass(job, i).tokens);
  out.reward += judging_seconds(job, shape.sequences / judges, shape.input + shape.output);
  out.log_probs = shape.scores(job.models.actor, trainers, group, scored);
  out.train = shape.trains(job.models.actor, trainers, group);
  if (in_steps) {
    const ModelLayout& teacher = job.models.reference ? *job.models.reference : job.models.actor;
    out.train += static_cast<double>(job.options.train.max_epochs) *
                 shape.scores(teacher, trainers, group, training_tokens(job));
  }
  if (job.models.critic) {
    out.log_probs += shape.scores(*job.models.critic, trainers, group, scored);
    out.train += shape.trains(*job.models.critic, trainers, group);
  }
  out.sync = shape.syncs(gen.model, trainers, group, degree);
  const double learning = out.log_probs + out.train;
  const bool together =
      job.options.train.async_depth > 0 && job.roles.trainer != job.roles.generator;
  out.total =
      out.reward + out.sync + (together ? std::max(out.rollout, learning) : out.rollout + learning);
  out.tokens_per_second = shape.tokens() / out.total;
  return out;
}

}  // namespace trireme::plan
