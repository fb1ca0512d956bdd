// ZeRO-3: a model whose fp32 weights, gradients and optimizer state are cut by rows over the ranks
// of a communicator, and an explicit loop over its stages that gathers the weights of one stage
// while another computes. Frozen parameters (Parameter::trainable) are cut likewise, in the compute
// type only; a model of frozen parameters alone only goes forward.
//
// Every rank runs the same number of passes: forward(), forward_backward() and step() are
// collective, and a rank without work passes an empty batch. Losses must already be divided by
// global counts: gradients are summed over ranks and micro-batches, never averaged: over ranks
// first, or over a rank's micro-batches (reduce_once; FSDP's no_sync, DDP's as well).
//
// Legend: T packed tokens, D hidden, V vocabulary, N ranks of the shard communicator.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "trireme/base/placed.hpp"
#include "trireme/base/shard_layout.hpp"
#include "trireme/comm/comm.hpp"
#include "trireme/comm/shard_exchange.hpp"
#include "trireme/config/choices.hpp"
#include "trireme/kernels/token_log_probs.hpp"
#include "trireme/model/packed_batch.hpp"
#include "trireme/model/spec.hpp"
#include "trireme/model/strategy.hpp"

namespace trireme::zero {

// When a micro-batch's gradients go to the ranks that own them.
enum class Reduce : uint8_t { now, later };
// `left`: micro-batches of the step behind this one.
constexpr Reduce reduce_before(int64_t left) { return left > 0 ? Reduce::later : Reduce::now; }

class ShardedModel;

struct ShardedModelOptions {
  std::string name = "model";  // for the log: actor, critic, reference, ...
  config::DType compute = config::DType::bf16;
  // Blocks that are run again in backward, from the first one on; the others keep their
  // activations. -1: all (train.recompute).
  int64_t recompute = -1;
  bool track_changes =
      false;  // keep a bit per value that was changed since clear_changes() (weight sync's delta)
  comm::ExchangeKind exchange = comm::ExchangeKind::automatic;
  bool node_weights = true;  // comm::ExchangeOptions::node_weights (train.node_weights)
  config::DType reduce = config::DType::f32;  // in which gradients are summed over ranks and
                                              // replicas (train.reduce_dtype)
  bool reduce_once = false;  // once a step: until then a rank keeps whole gradients of its own,
                             // MemoryUse::sums (train.reduce_once)
  // How the stages are executed; never null. Shared with whoever keeps its state (adapters, a
  // context group).
  std::shared_ptr<model::Strategy> strategy = std::make_shared<model::Strategy>();
  // fp32 weights, moments and their average lie in page-locked host memory and pass through the
  // device in step() (train.optimizer_offload).
  bool offload = false;
  uint64_t seed = 0;  // of dropout
  // The ring of all models of this rank, none of which runs while another does; null: one of its
  // own, counted in memory().
  std::shared_ptr<comm::RingMemory> rings = nullptr;
  // Over the same ranks, read from the same files: parameters that are frozen in both
  // (model::frozen_alike) are read from that one, which has them in memory and load()s them; passes
  // of the two follow one another. Its memory is kept while this model lives. Null: none.
  const ShardedModel* base = nullptr;
};

struct AdamWOptions {
  double lr = 0;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0;  // not on biases and norm weights, as OpenRLHF groups them
  double max_norm = 1;      // 0: no clip
};

struct StepResult {
  double grad_norm = 0;  // before clipping, over all trainable parameters; a tied one counts once
  int64_t changed_values =
      0;  // compute-dtype values that differ from before, over the shard communicator
  int64_t elements = 0;  // trainable ones, of the whole model
  bool updated =
      false;  // false: the norm is not finite, nothing was changed but the gradients were cleared
  std::string not_finite{};  // then: the first tensor and rank, in words; on every rank
};

// Bytes of this rank, by kind. The formulas of `plan` use the same kinds.
struct MemoryUse {
  int64_t master = 0;
  int64_t gradients = 0;  // fp32 shards
  int64_t moments = 0;
  int64_t average = 0;  // EMA
  int64_t changed = 0;
  int64_t weights = 0;   // compute-dtype storage of the exchange: own slices, a ring of its own, or
                         // share of the window
  int64_t exchange = 0;  // gradient slots of the exchange, where they are its own
  int64_t sums = 0;      // reduce_once: a rank's own gradients
  int64_t activations = 0;  // most bytes of stage inputs that one pass kept
};

// hidden [T, D] after the final norm, of the tokens that the strategy gives this rank, and the
// head's weight, [V, D] or [1, D]; both in the compute dtype (hidden in fp32 where
// ModelSpec::wide_head()), valid during the call only. With an adapter on the head as HeadWeight
// says.
using Head = std::function<void(const at::Tensor& hidden, const kernels::HeadWeight& head_weight)>;
// The scalar to differentiate.
using Loss =
    std::function<at::Tensor(const at::Tensor& hidden, const kernels::HeadWeight& head_weight)>;
// Fills `out` with rows `block` of a parameter (index into ModelSpec::parameters), block.elements()
// values.
using ReadRows = std::function<void(size_t parameter, const base::Block& block, float* out)>;

using WantsParameter = std::function<bool(size_t parameter)>;
using VisitWhole = std::function<void(size_t parameter, const at::Tensor& whole)>;

// Called before weight, moments and average of a parameter change.
using BeforeChange = std::function<void(size_t parameter)>;

class ShardedModel {
 public:
  // Collective over both communicators. `shard` cuts the model; `replicas`, when given, joins the
  // ranks that hold the same rows of different shard groups (hybrid sharding). Weights are zero
  // until load().
  ShardedModel(model::ModelSpec spec, const comm::CommView& shard,
               const std::optional<comm::CommView>& replicas, at::Device device,
               const ShardedModelOptions& options);
  ~ShardedModel();  // collective
  ShardedModel(ShardedModel&&) noexcept;

  // Every rank reads its own rows only. Collective; also forgets gradients, moments and the step
  // count.
  void load(const ReadRows& read);
  // Makes the compute-dtype weights follow master() after it was written directly. Collective.
  void refresh();

  // Without gradients. `head` is not called for an empty batch. A model with an adapter may be run
  // without it: the model that it started from. Collective.
  void forward(const model::PackedBatch& batch, const Head& head,
               model::AdapterUse adapter = model::AdapterUse::applied);
  // Adds to the gradients. `loss` is not called for an empty batch. With reduce_once gradient()
  // lacks what is to go to it later; else it always goes now. `when` is the same on all ranks, and
  // now for the last of a step; for no other where devices have replicas, which add up a stage's
  // gradients as soon as its backward is over. Collective.
  void forward_backward(const model::PackedBatch& batch, const Loss& loss,
                        Reduce when = Reduce::now);
  // One AdamW step over the gradients since the last one, which it clears. Collective.
  StepResult step(const AdamWOptions& options);
  void zero_gradients();

  // From now on step() calls it for every parameter that this rank has rows of, mostly in their
  // order, where master(), moments and average are on the host; it may wait, but not for another
  // rank's step(). Never null.
  void before_change(BeforeChange call);

  // Keeps an average of the weights, e = beta e + (1 - beta) p after each step (F27), starting from
  // the weights now.
  void enable_average(double beta);

  const model::ModelSpec& spec() const;
  base::Block own(size_t parameter) const;
  int64_t largest_stage() const;  // most trainable elements of a stage on this rank
  // fp32 shards, own(parameter).elements() values; nullptr for a frozen parameter, for a rank
  // without rows of it, or where the model has none (no average). On state_device(). Written by
  // checkpoint's reader, followed by refresh().
  using Values = base::Placed<float>;
  Values master(size_t parameter);
  Values gradient(size_t parameter);
  Values moment1(size_t parameter);
  Values moment2(size_t parameter);
  Values average(size_t parameter);
  at::Device state_device()
      const;  // where master(), moments and average lie; gradients are where the model is
  // This rank's rows in the compute dtype, in the exchange's storage: the address never changes,
  // the values change in step(), load() and refresh().
  base::Placed<const std::byte> compute_slice(size_t parameter);
  int64_t compute_bytes() const;  // of a value there
  // Gathers the wanted parameters stage by stage and shows each of them whole, once, in the compute
  // dtype, where the model lies; on a device as of its compute stream, and valid during the call
  // only. `wanted` is the same on all ranks. Collective over the shard.
  void visit_whole(const WantsParameter& wanted, const VisitWhole& visit);
  // All rows in the compute dtype where this rank can read them at any time (ranks of one node in
  // shared memory); nullptr elsewhere. As for compute_slice().
  const void* compute_whole(size_t parameter) const;
  // One bit per own value, see track_changes; nullptr without, and for a frozen parameter. All are
  // set by load() and refresh().
  const uint64_t* changed(size_t parameter) const;
  void clear_changes();

  int64_t steps()
      const;  // optimizer steps so far: the bias corrections' counter, part of a checkpoint
  void set_steps(int64_t steps);

  const comm::ExchangeCounters& counters() const;
  std::string exchange_kind() const;
  MemoryUse memory() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme::zero
