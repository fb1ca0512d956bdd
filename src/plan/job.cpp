#include "trireme/plan/job.hpp"

#include <algorithm>
#include <span>

#include "plan/generation_bytes.hpp"
#include "plan/groups.hpp"
#include "plan/judge_bytes.hpp"
#include "plan/product_bytes.hpp"
#include "plan/sync_staging.hpp"
#include "trireme/base/checked.hpp"
#include "trireme/base/error.hpp"
#include "trireme/config/models_of.hpp"
#include "trireme/config/placement.hpp"
#include "trireme/plan/decisions.hpp"
#include "trireme/plan/pass_bytes.hpp"

namespace trireme::plan {
namespace {

constexpr int64_t mib = int64_t{1} << 20;

constexpr PhaseSet training =
    phase_bit(Phase::forward) | phase_bit(Phase::head) | phase_bit(Phase::backward);

bool contains(const std::vector<int>& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

bool node_by_node(const std::vector<int>& ranks, std::span<const int> node_of_rank) {
  return std::is_sorted(ranks.begin(), ranks.end(), [&](int a, int b) {
    return node_of_rank[static_cast<size_t>(a)] < node_of_rank[static_cast<size_t>(b)];
  });
}

// Of the head's weight: the vocabulary, or 1 for a score.
int64_t head_rows(const ModelLayout& model) {
  return model.tensors[model.stages.back().back()].shape.front();
}

// Sums of what a rank has besides the entries that are known byte for byte.
constexpr int64_t device_context = 600 * mib;  // a CUDA context with LibTorch's libraries
constexpr int64_t product_workspaces =
    64 *
    mib;  // cuBLAS' and cuBLASLt's for one stream on Hopper, 32 MiB each, from LibTorch's allocator
constexpr int64_t allocator_share = 50;  // of the tensors one part in so many for what LibTorch's
                                         // allocator keeps between them; set by hand
// On hosts, by the runs of docs/user/plan.md: a process with LibTorch, MPI and a tokenizer before
// its first model; then thread pools, MPI's buffers, and what a thread packs operands into. The
// heap keeps one part in so many of what is allocated between tensors, and gives back what is more
// (base/heap.hpp).
constexpr int64_t host_process = 176 * mib;
constexpr int64_t host_scratch = 20 * mib, host_scratch_of_thread = 4 * mib;
constexpr int64_t heap_share = 50;
// kernels/row_losses.cpp: of a chunk of logits in fp32, and tensors of that size at a time.
constexpr int64_t distill_chunk_bytes(Place place) {
  return (place == Place::device ? 128 : 16) * mib;
}
constexpr int64_t distill_chunk_tensors = 10;
constexpr int64_t bytes_per_sample_token =
    64;  // ids, masks, log-probs, values, advantages, and the copies that travel

// Builds the ledger of one rank, role by role.
class RankLedger {
 public:
  RankLedger(const Job& job, int rank)
      : job_(job),
        rank_(rank),
        place_(job.machine.device_bytes > 0 ? Place::device : Place::host) {}

  Ledger build() {
    process();
    const bool ppo = job_.command == config::Command::ppo;
    if (ppo && contains(job_.roles.reward, rank_)) {
      frozen_models();
      add_judges(ledger_, job_, logit());
    }
    if (contains(job_.roles.trainer, rank_)) trained_models();
    rings();
    if (ppo && contains(job_.roles.generator, rank_)) generator();
    if (ppo) weight_sync();
    place_ == Place::device ? allocator() : heap();
    return std::move(ledger_);
  }

 private:
  const config::Options& options() const { return job_.options; }
  int64_t element() const { return config::bytes_per_element(job_.compute); }
  int64_t logit() const {
    return std::max<int64_t>(element(),
                             options().model.head_dtype == config::HeadType::fp32 ? 4 : 0);
  }
  Operators operators() const {
    if (place_ == Place::host) return Operators::host;
    return job_.own_kernels ? Operators::device : Operators::composed;
  }
  PassWork work(const ModelLayout& model, int64_t tokens) const {
    return {model,
            tokens,
            targets(tokens),
            head_rows(model),
            kept_blocks(model),
            operators(),
            element(),
            logit(),
            options().train.logits_memory.count,
            options().train.exact_products};
  }

  // Of ppo the policy's own tokens: of each sequence what its prompt leaves.
  int64_t targets(int64_t tokens) const {
    const int64_t prompt = job_.length.shortest_prompt, answer = options().rollout.max_new_tokens;
    if (prompt == 0 || answer == 0) return tokens;
    return base::ceil_div(tokens * answer, prompt + answer);
  }

  // Readings of others, not ours.
  void process() {
    if (place_ == Place::host) {
      if (!job_.process_started)
        add("process", "the program and its libraries", host_process, every_phase,
            Accuracy::estimate);
      add("process", "buffers of the libraries",
          host_scratch + job_.threads * host_scratch_of_thread, every_phase, Accuracy::estimate);
      for (const auto& [what, bytes] :
           {std::pair{"code of bf16 products by their shapes", product_code_bytes(job_)},
            {"blocks of bf16 products in fp32", widened_block_bytes(job_)},
            {"operands of fp32 products", packed_operand_bytes(job_)}}) {
        if (bytes > 0) add("process", what, bytes, every_phase, Accuracy::estimate);
      }
      const int64_t sequences = job_.command == config::Command::ppo
                                    ? options().sequences_per_iteration()
                                    : options().train.batch_size;
      const int64_t share = base::ceil_div<int64_t>(
          sequences * options().max_len(), static_cast<int64_t>(job_.roles.trainer.size()));
      add("process", "samples", share * bytes_per_sample_token, every_phase, Accuracy::estimate);
      return;
    }
    if (!job_.process_started) {
      ledger_.add({"process", "CUDA context and libraries", place_, device_context, every_phase,
                   Accuracy::estimate, 0, Kind::libraries});
    }
    ledger_.add({"process", "NCCL communicators", place_, nccl_bytes(job_, rank_), every_phase,
                 Accuracy::estimate, 0, Kind::libraries});
  }

  // Not before the first pass: a generator takes its share of free memory before.
  void allocator() {
    const PhaseSet working = every_phase & ~phase_bit(Phase::start);
    const int64_t tensors = ledger_.peak(Place::device, Kind::tensors);
    const auto& o = options().generate;  // steps are recorded on a stream of their own
    const bool records =
        contains(job_.roles.generator, rank_) && job_.own_kernels && o.paged_attention && o.graphs;
    add("process", "workspaces of products", (records ? 2 : 1) * product_workspaces, working,
        Accuracy::estimate);
    add("process", "what the allocator keeps between tensors", tensors / allocator_share, working,
        Accuracy::estimate);
  }

  // Of what is allocated piece by piece: a generator's pages and rows are not.
  void heap() {
    int64_t most = 0;
    for (int phase = 0; phase < phase_count; ++phase) {
      int64_t sum = 0;
      for (const Entry& entry : ledger_.entries()) {
        const bool pieces =
            entry.place == Place::host && entry.kind == Kind::tensors && entry.owner != "generator";
        if (pieces && (entry.phases & phase_bit(static_cast<Phase>(phase)))) sum += entry.bytes;
      }
      most = std::max(most, sum);
    }
    add("process", "what the heap keeps between tensors", most / heap_share,
        every_phase & ~phase_bit(Phase::start), Accuracy::estimate);
  }

  Exchange exchange(const std::vector<int>& ranks) const {
    if (place_ == Place::device) return Exchange::device_ring;
    const bool windows = one_node(job_, ranks) ||
                         (options().train.node_weights && node_by_node(ranks, job_.node_of_rank));
    return windows ? Exchange::windows : Exchange::host_ring;
  }

  // Of these ranks, those on this rank's node.
  int64_t count_on_node(const std::vector<int>& ranks) const {
    const auto node = [&](int rank) { return job_.node_of_rank[static_cast<size_t>(rank)]; };
    return std::count_if(ranks.begin(), ranks.end(),
                         [&](int rank) { return node(rank) == node(rank_); });
  }

  // `longest`: tokens of a sequence that it reads.
  void sharded(const std::string& owner, const ModelLayout& model, const std::vector<int>& ranks,
               bool average, int64_t longest) {
    const Exchange how = exchange(ranks);
    const auto count = static_cast<int64_t>(ranks.size());
    const bool shares = how == Exchange::windows;
    const int64_t sharing = shares ? count_on_node(ranks) : 1;
    const auto bytes = sharded_model_bytes(
        model, element(), average,
        {.exchange = how,
         .ranks = static_cast<int>(count),
         .ranks_of_node = static_cast<int>(sharing),
         .reduced_bytes = config::bytes_per_element(options().train.reduce_dtype)});
    add_exchange(owner, shares ? "weights, share of the node's" : "own weight slices",
                 bytes.weights_own, (sharing - 1) * bytes.weights_own);
    if (shares) {
      add_exchange(owner, "gradients of two stages", bytes.gradient_slots,
                   (sharing - 1) * bytes.gradient_slots / sharing);
      add_exchange(owner, "sums on their way", bytes.receive);
    } else if (model.borrows()) {  // while the lender's stages are in the ring of all models
      add_exchange(owner, "ring of two stages of its own",
                   bytes.weights_ring + bytes.gradient_slots + bytes.receive);
    } else {
      ring_.weights = std::max(ring_.weights, bytes.weights_ring);
      ring_.gradients = std::max(ring_.gradients, bytes.gradient_slots);
      ring_.received = std::max(ring_.received, bytes.receive);
    }
    add(owner, "fp32 gradients", bytes.gradients);
    const int64_t trained = shard_elements(model, static_cast<int>(count));
    if (trained > 0 && options().train.reduce_once)
      add(owner, "a step's own gradients", gradient_sum_bytes(model, static_cast<int>(count)));
    if (trained > 0 && options().train.reduce_dtype == config::DType::bf16 &&
        ranks.size() < job_.roles.trainer.size()) {
      const bool stays = place_ == Place::device;  // from the first backward pass on
      add(owner, "gradients in bf16 for the sum over copies", 2 * std::min(replica_piece, trained),
          stays ? every_phase & ~phase_bit(Phase::start) : phase_bit(Phase::step),
          Accuracy::estimate);
    }
    if (place_ == Place::device) {  // made by the first pass
      add(owner, "tables of the rotation", rotation_bytes(model.shape, longest),
          every_phase & ~phase_bit(Phase::start));
    }
    const bool offload = place_ == Place::device && options().train.optimizer_offload;
    const Place state = offload ? Place::host : place_;
    for (const auto& [what, size] : {std::pair{"fp32 master weights", bytes.master},
                                     {"Adam's moments", bytes.moments},
                                     {"moving average", bytes.average}}) {
      ledger_.add({owner, what, state, size, every_phase, Accuracy::exact});
    }
  }

  // One for all models, which run one after the other (comm::RingMemory).
  void rings() {
    add_exchange("all models", "ring of two stages", ring_.weights);
    add_exchange("all models", "gradients of two stages", ring_.gradients);
    add_exchange("all models", "received gradients", ring_.received);
  }

  // Models score one after the other: the one whose pass takes most counts.
  void frozen_models() {
    const std::vector<int> ranks = reward_group(job_, rank_);
    int64_t most = 0;
    if (const auto& reference = job_.models.reference; reference && !trainers_have_reference()) {
      sharded("reference", frozen(*reference), ranks, false, options().max_len());
      most = scoring_pass_bytes(
          work(*reference, scoring_tokens(job_, static_cast<int>(job_.roles.reward.size()))));
    }
    for (size_t i = 0; i < job_.models.reward_models.size(); ++i) {
      ModelLayout model = job_.models.reward_models[i];
      if (!config::reward_shares_trainers(options(), job_.roles)) model.lent.clear();
      const RewardPass pass = reward_pass(job_, i);
      sharded(base::text("reward model ", i), frozen(model), ranks, false, pass.longest);
      most = std::max(most, scoring_pass_bytes(work(model, pass.tokens)));
    }
    scoring(most, Phase::reward);
  }

  void trained_models() {
    const std::vector<int> group = shard_group(job_, rank_);
    const auto& models = job_.models;
    const int64_t tokens = training_tokens(job_);
    sharded("actor", models.actor, group, options().train.enable_ema, options().max_len());
    if (models.critic) sharded("critic", *models.critic, group, false, options().max_len());
    // actor and critic train one after the other: the larger counts
    const bool critic =
        models.critic && pass_bytes(*models.critic, tokens) > pass_bytes(models.actor, tokens);
    pass(critic ? "critic" : "actor", critic ? *models.critic : models.actor, tokens,
         static_cast<int>(group.size()));
    if (job_.command == config::Command::ppo) {  // log-probs and values, one after the other
      const int64_t scored = scoring_tokens(job_, static_cast<int>(job_.roles.trainer.size()));
      const int64_t values = models.critic ? scoring_pass_bytes(work(*models.critic, scored)) : 0;
      scoring(std::max(scoring_pass_bytes(work(models.actor, scored)), values), Phase::log_probs);
    }
    if (trainers_have_reference()) reference_of_trainers(group, tokens);
    if (place_ == Place::device) host_mirrors(group);
    if (place_ == Place::host || options().train.optimizer_offload)
      copies_aside(static_cast<int>(group.size()));
  }

  bool trainers_have_reference() const {
    return config::trainers_have_reference(options(), job_.command);
  }
  void reference_of_trainers(const std::vector<int>& group, int64_t tokens) {
    const auto& reference = job_.models.reference;  // none: the actor without its adapter
    if (reference) {
      sharded("reference", frozen(*reference), group, false, options().max_len());
      scoring(scoring_pass_bytes(work(*reference, tokens)), Phase::forward);
    }
    const bool ppo = job_.command == config::Command::ppo;
    if (ppo || (reference && job_.command == config::Command::sft))
      teacher(reference ? *reference : job_.models.actor, tokens);
  }

  // learn/teacher_rows.cpp
  void teacher(const ModelLayout& model, int64_t tokens) {
    const config::DistillOptions& distill = options().algo.distill;
    const int64_t vocabulary = head_rows(model);
    const int64_t row = distill.by_teacher() ? std::min(distill.top_k, vocabulary) * (8 + 4)
                                             : vocabulary * element();
    add("reference", "the teacher's logits of a micro-batch", tokens * row,
        phase_bit(Phase::forward) | phase_bit(Phase::head), Accuracy::estimate);
    const int64_t chunk = std::min(distill_chunk_bytes(place_), tokens * vocabulary * 4);
    add("reference", "distributions of some rows", chunk * distill_chunk_tensors,
        phase_bit(Phase::head), Accuracy::estimate);
  }

  // Blocks that are not run again keep all their operators saved (train.recompute).
  int64_t kept_blocks(const ModelLayout& model) const {
    const int64_t wish = options().train.recompute;
    const int64_t differentiated = model.shape.layers - frozen_blocks(model);
    return wish < 0 ? 0 : std::clamp<int64_t>(model.shape.layers - wish, 0, differentiated);
  }
  int64_t pass_bytes(const ModelLayout& model, int64_t tokens) const {
    const PassBytes bytes = training_pass_bytes(work(model, tokens));
    return bytes.stage_inputs + bytes.kept +
           std::max(bytes.backward,
                    bytes.head_weight + bytes.head_logits + bytes.head_kept + bytes.head_hidden);
  }

  void pass(const std::string& owner, const ModelLayout& model, int64_t tokens, int group) {
    const PassBytes bytes = training_pass_bytes(work(model, tokens));
    const auto estimated = [&](const std::string& what, int64_t size, PhaseSet phases) {
      add(owner, what, size, phases, Accuracy::estimate);
    };
    estimated("stage inputs", bytes.stage_inputs, training);
    estimated("activations of blocks that are kept", bytes.kept, training);
    estimated("ids and columns of a micro-batch", bytes.columns, training | phase_bit(Phase::step));
    estimated("one block's values", bytes.forward, phase_bit(Phase::forward));
    estimated("head: gradient of a piece of the vocabulary", bytes.head_weight,
              phase_bit(Phase::head));
    estimated("head: logits of a piece of the vocabulary", bytes.head_logits,
              phase_bit(Phase::head));
    estimated("head: logits that wait for their gradient", bytes.head_kept, phase_bit(Phase::head));
    estimated("head: hidden states and their gradients", bytes.head_hidden, phase_bit(Phase::head));
    estimated("one block's activations", bytes.backward, phase_bit(Phase::backward));
    if (place_ == Place::device) {
      const bool offload = options().train.optimizer_offload;
      estimated(offload ? "step: a piece of the optimizer's state" : "norm: a chunk in fp64",
                device_step_bytes(model, group, element(), offload), phase_bit(Phase::step));
    }
  }

  void scoring(int64_t bytes, Phase phase) {
    add("scoring", "activations", bytes, phase_bit(phase), Accuracy::estimate);
  }

  // In PpoRoles::release_caches(). A planned rank has its GPU for itself.
  bool gives_way() const {
    const bool trains = contains(job_.roles.trainer, rank_);
    return !job_.keeps_caches && caches_give_way(options(), trains, trains);
  }
  PhaseSet cache_phases() const {
    return gives_way()
               ? phase_bit(Phase::start) | phase_bit(Phase::rollout) | phase_bit(Phase::reward)
               : every_phase;
  }
  PhaseSet weight_phases() const {
    const bool given_back = gives_way() && place_ == Place::device;
    return given_back
               ? every_phase & ~(phase_bit(Phase::log_probs) | training | phase_bit(Phase::step))
               : every_phase;
  }

  void generator() {
    const auto groups = config::replica_groups(job_.roles.generator, job_.node_of_rank, degree());
    int place = 0;
    for (const auto& group : groups) {
      const auto found = std::find(group.begin(), group.end(), rank_);
      if (found != group.end()) place = static_cast<int>(found - group.begin());
    }
    if (!reads_in_place(job_))
      add("generator", "weights", generator_weight_bytes(job_.models.slices, place, element()),
          weight_phases());
    if (options().generate.weights ==
        config::RolloutWeights::int8) {  // each rank's own, also where ranks read one copy of the
                                         // weights
      add("generator", "weights in 8 bits",
          generator_int8_bytes(job_.models.slices, place, job_.models.actor.shape.tied));
    }
    const int64_t free = std::max<int64_t>(0, capacity() - ledger_.bytes(place_, Phase::start));
    const config::ModelShape& shape = job_.models.actor.shape;
    const int64_t granted =
        kv_cache_bytes(options().generate.kv_memory, kv_bytes_per_token(shape, degree(), element()),
                       options().generate.max_batch, options().max_len(), free);
    const int64_t sequences =
        base::ceil_div<int64_t>(options().prompts_to_write(), static_cast<int64_t>(groups.size())) *
        options().rollout.n_samples_per_prompt;
    const int64_t padded = base::round_up(options().max_len() + 1, options().generate.page_size);
    if (place_ == Place::device) {
      add("generator", "KV pages", granted, cache_phases());
      GenerationStep step{.shape = shape,
                          .degree = degree(),
                          .element_bytes = element(),
                          .logit_bytes = logit(),
                          .longest = padded};
      step.take_slices(job_.models.actor, job_.models.slices, place);
      step.take_work(options(), sequences, options().generate.max_batch, job_.own_kernels);
      if (sums_in_window(job_, replica_of(job_, rank_)))
        step.take_window(options().generate.max_batch);
      add_generation(ledger_, "generator", generation_bytes(step), phase_bit(Phase::rollout),
                     cache_phases());
      return;
    }
    // On the host a page takes memory when it is first written: no more than all sequences of a
    // rollout fill.
    const int64_t tokens = sequences * padded;
    add("generator", "KV pages that are written",
        std::min(granted, tokens * kv_bytes_per_token(shape, degree(), element())), cache_phases(),
        Accuracy::estimate);
    const int64_t rows =
        std::min(tokens, options().generate.max_batch_tokens + options().generate.max_batch);
    const int64_t logit_rows = std::min(sequences, options().generate.max_batch);
    if (degree() >
        1) {  // two sums in turn that the node's ranks share, or a copy of all parts of one
      const auto on_one_node = [&](const auto& group) {
        return contains(group, rank_) && one_node(job_, group);
      };
      const bool own_kernels = options().generate.backend != config::GenerateBackend::torch;
      const bool shares =
          own_kernels && options().generate.shared_sums && std::ranges::any_of(groups, on_one_node);
      const int64_t parts = (shares ? 2 : degree()) * rows * shape.hidden * int64_t{4};
      ledger_.add({"generator", "parts of sums over the replica's ranks", place_, parts,
                   every_phase, Accuracy::estimate, shares ? (degree() - 1) * parts : 0});
    }
    add("generator", "rows of a step",
        host_step_bytes(shape, degree(), rows, logit_rows, element(), logit()), every_phase,
        Accuracy::estimate);
  }

  void weight_sync() {
    const SyncStaging staging = sync_staging(job_, rank_);
    ledger_.add({"weight sync", "rings between ranks of the node", Place::host, staging.rings,
                 every_phase, Accuracy::estimate, staging.mapped});
    ledger_.add({"weight sync", "buckets of messages", Place::host, staging.messages, every_phase,
                 Accuracy::estimate});
    if (staging.device > 0)
      ledger_.add({"weight sync", "what is packed for messages between GPUs", Place::device,
                   staging.device, every_phase, Accuracy::estimate});
  }

  // Page-locked copies through which checkpoints go.
  void host_mirrors(const std::vector<int>& group) {
    const int ranks = static_cast<int>(group.size());
    if (!options().train.optimizer_offload) {
      MirrorBytes
          mirror;  // fp32 weights, both moments, of the actor also the average, tensor by tensor
      mirror.add(job_.models.actor, ranks, saved_arrays(options().train.enable_ema));
      if (job_.models.critic) mirror.add(*job_.models.critic, ranks, saved_arrays(false));
      add_host("checkpoint", "page-locked copy of weights and moments", mirror.total());
    }
  }

  // The part of a background save that an optimizer step overtakes (ckpt.copy_aside).
  void copies_aside(int ranks) {
    if (!options().ckpt.background) return;
    int64_t stage = 0, all = 0;
    const auto see = [&](const ModelLayout& model, int64_t arrays) {
      stage = std::max(stage, largest_stage_slice(model, ranks) * arrays * int64_t{4});
      all += shard_elements(model, ranks) * arrays * int64_t{4};
    };
    see(job_.models.actor, saved_arrays(options().train.enable_ema));
    if (job_.models.critic) see(*job_.models.critic, saved_arrays(false));
    const bool one = options().ckpt.copy_aside == config::CopyAside::stage;
    ledger_.add(
        {"checkpoint",
         one ? "one stage that a save has not written yet" : "what a save has not written yet",
         Place::host, one ? stage : all, phase_bit(Phase::step), Accuracy::estimate});
  }

  int degree() const { return static_cast<int>(options().generate.tensor_parallel); }

  // A rank's part of the place: a GPU, or its share of the node.
  int64_t capacity() const {
    if (place_ == Place::device) return job_.machine.device_bytes;
    const int node = job_.node_of_rank[static_cast<size_t>(rank_)];
    return job_.machine.host_bytes /
           std::count(job_.node_of_rank.begin(), job_.node_of_rank.end(), node);
  }

  void add(const std::string& owner, const std::string& what, int64_t bytes,
           PhaseSet phases = every_phase, Accuracy accuracy = Accuracy::exact) {
    ledger_.add({owner, what, place_, bytes, phases, accuracy});
  }
  // `mapped`: of other ranks, in the same window.
  void add_exchange(const std::string& owner, const std::string& what, int64_t bytes,
                    int64_t mapped = 0) {
    ledger_.add(
        {owner, what, place_, bytes, every_phase, Accuracy::exact, mapped, Kind::exchanges});
  }
  void add_host(const std::string& owner, const std::string& what, int64_t bytes) {
    ledger_.add({owner, what, Place::host, bytes, every_phase, Accuracy::exact});
  }

  const Job& job_;
  int rank_;
  Place place_;
  Ledger ledger_;
  struct {
    int64_t weights = 0, gradients = 0, received = 0;
  } ring_;
};

// Of `sequences` of `longest` tokens over `ranks`: a pass of at most `micro_batch` tokens, but
// never less than one sequence.
int64_t pass_tokens(int64_t longest, int64_t sequences, int64_t ranks, int64_t micro_batch) {
  const int64_t most = std::max(base::ceil_div(sequences, ranks) * longest, longest);
  return std::min(std::max(micro_batch, longest), most);
}

// The deck's source of reward model `model`; nullptr where the job was made without.
const config::RewardSource* source_of(const Job& job, size_t model) {
  for (const auto& source : job.options.reward.source) {
    if (source.kind == config::RewardKind::model && model-- == 0) return &source;
  }
  return nullptr;
}

}  // namespace

int64_t training_tokens(const Job& job) {
  const bool pairs = config::row_kind(job.options, job.command) == config::RowKind::pair;
  return pass_tokens(job.options.max_len(), job.options.train.batch_size * (pairs ? 2 : 1),
                     static_cast<int64_t>(job.roles.trainer.size()),
                     job.options.train.micro_batch_tokens);
}

int64_t scoring_tokens(const Job& job, int ranks) {
  return pass_tokens(job.options.max_len(), job.options.sequences_per_iteration(), ranks,
                     job.options.rollout_micro_batch_tokens());
}

RewardPass reward_pass(const Job& job, size_t model) {
  const config::RewardSource* source = source_of(job, model);
  const int64_t longest = source && source->max_len > 0 ? source->max_len : job.options.max_len();
  const int64_t tokens = source && source->batch_tokens > 0
                             ? source->batch_tokens
                             : job.options.rollout_micro_batch_tokens();
  return {longest, pass_tokens(longest, job.options.sequences_per_iteration(),
                               static_cast<int64_t>(job.roles.reward.size()), tokens)};
}

Ledger memory_of_rank(const Job& job, int rank) { return RankLedger(job, rank).build(); }

int64_t kv_cache_bytes(const config::MemoryShare& share, int64_t bytes_per_token, int64_t sequences,
                       int64_t max_len, int64_t free) {
  const int64_t useful = base::round_up<int64_t>(max_len + 1, 256) * sequences * bytes_per_token;
  if (share.bytes > 0) return std::min(share.bytes, useful);
  const auto granted = static_cast<int64_t>(share.fraction * static_cast<double>(free));
  return std::min(std::max(granted, bytes_per_token * (max_len + 256)), useful);
}

KvNeed kv_need(const config::Options& options, int64_t prompt_tokens, int replicas) {
  const int64_t room = std::max<int64_t>(options.max_len() - prompt_tokens, 0);
  const int64_t wish = options.rollout.max_new_tokens;
  const int64_t most = wish > 0 ? std::min(wish, room) : room;
  const int64_t batches =
      options.train.partial_rollout_enable ? 1 + options.train.async_depth : 1;  // under way
  const int64_t of_replica = base::ceil_div<int64_t>(options.prompts_to_write(), replicas) *
                             options.rollout.n_samples_per_prompt * batches;
  return {std::min(options.generate.max_batch, of_replica), prompt_tokens + most / 2};
}

std::string kv_shortage(const KvNeed& need, int64_t bytes, int64_t bytes_per_token) {
  const int64_t length = std::max<int64_t>(need.expected_length, 1);
  const int64_t held = bytes / bytes_per_token / length;
  if (held >= need.sequences) return "";
  const auto wanted = static_cast<double>(need.sequences * length * bytes_per_token);
  return base::text(
      "the KV cache of ", base::human_bytes(static_cast<double>(bytes)), " a rank holds ", held,
      " of the ", need.sequences, " sequences that a replica would decode together (", length,
      " tokens each, a mean prompt and half of the longest answer): the",
      " others wait or are computed again. generate.kv_memory = \"", base::human_bytes(wanted),
      "\" would hold them where memory allows; more generate.tensor_parallel ranks or fewer roles "
      "on a rank leave more");
}

}  // namespace trireme::plan
