// Seconds of training, generation and weight sync from shapes and the makers' figures of a machine.
// A model of published systems, checked against their runs (tests/gold/plan/published.txt, which
// says what was fitted on which row): what such a job can take, not what Trireme was measured to
// take.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/plan/job.hpp"

namespace trireme::plan {

// Fitted on published ZeRO-3 runs (rows 1-17).
inline constexpr double compute_share = 0.50;             // of the peak, where activations are kept
inline constexpr double compute_share_recomputed = 0.59;  // with the recomputation counted as work
inline constexpr double link_share = 0.8;                 // of the links' figure
inline constexpr double collective_latency = 4e-6;  // seconds per rank of a collective over a ring
inline constexpr double overlap_loss = 0.5;  // of the shorter of compute and communication, exposed
// Set by hand beside published serving runs (rows 20-31).
// Of weights of GPUs that pass through a rank's host memory, bytes/s: what buckets as messages had
// inside a node of CPUs (perf/README.md, W1).
inline constexpr double host_bucket_speed = 3.7e9;
inline constexpr double stream_share = 0.8;   // of the memory's speed
inline constexpr double product_share = 0.6;  // of the peak
inline constexpr double cache_share = 0.95;   // of the device, less weights and 2 GB, for KV pages
// NVLink all-reduce among the ranks of a replica: NCCL's latency, not fitted.
inline constexpr double reduce_latency = 10e-6;

// A model as time sees it.
struct ModelWork {
  double parameters = 0, layers = 0, hidden = 0, attention = 0;  // attention: heads x head size
  double kv_bytes = 0;                                           // of one token, all layers
  double trainable = 1;                                          // share of the parameters
  BackwardShares backward = {};
};
ModelWork work_of(const ModelLayout& model, double kv_element_bytes);

struct TrainingWork {
  ModelWork model;
  double length = 0;  // tokens of a sequence
  double tokens = 0;  // of one pass on a rank
  int ranks = 1;      // that cut one copy of the model
  int per_node = 8;
  bool recompute = true;
  int tensor_parallel = 1;
  bool overlaps_tensor_parallel = false;
  double reduced_bytes = 4;  // of a gradient on its way from rank to rank
  double messages = 0;       // seconds of others of the pass, in one order with its exchange's
};
// One forward and backward pass.
double pass_seconds(const Machine& machine, const TrainingWork& work);
// One forward pass alone: log-probs, values, rewards.
double forward_seconds(const Machine& machine, const TrainingWork& work);
// One optimizer step over a model cut by `ranks`. `offload`: its state comes from host memory and
// goes back, beside nothing else.
double optimizer_seconds(const Machine& machine, const ModelWork& model, int ranks,
                         bool offload = false);

struct GenerationWork {
  ModelWork model;
  double weight_bytes = 2;       // of an element; 1 doubles the peak
  double input = 0, output = 0;  // tokens of a mean sequence
  int tensor_parallel = 1;
  double max_batch = 2048;
  double cache_bytes = 0;  // KV pages of a rank; 0: cache_share of the device
};
struct Generation {
  double batch = 0;              // sequences that decode together
  double step = 0;               // seconds, prefill of those that come in included
  double tokens_per_second = 0;  // generated, of a replica
};
// A replica that never runs dry.
Generation generation(const Machine& machine, const GenerationWork& work);
// All of `sequences` on one replica, the longest of which has `longest` tokens to write: the batch
// thins out towards the end.
double rollout_seconds(const Machine& machine, const GenerationWork& work, double sequences,
                       double longest);

// Weights from `trainers` ranks to replicas of `tensor_parallel` ranks on nodes of `per_node`.
double sync_seconds(const Machine& machine, double bytes, int trainers, int tensor_parallel,
                    int per_node);

// The same from GPU to GPU (SyncWay::messages): a trainer sends its shard to each node of
// generators, or to one of them where these are more nodes than the trainers'; inside a node it is
// passed on; what is packed is read and written on both sides.
struct DeviceSync {
  int trainers = 1, tensor_parallel = 1, replicas = 1;
  int trainer_nodes = 1, generator_nodes = 1;
  bool one_node = true;  // has all of them
};
double device_sync_seconds(const Machine& machine, double bytes, const DeviceSync& sync);

// The same by the trainers' gathers, where each rank copies its slice (SyncWay::gathers).
double gathered_sync_seconds(const Machine& machine, double bytes, int stages, int trainers,
                             int tensor_parallel, int per_node);

// An iteration of PPO, phase by phase; with async_depth the roles work at the same time.
struct IterationTime {
  double rollout = 0, reward = 0, log_probs = 0, train = 0, sync = 0;
  double total = 0;
  double tokens_per_second = 0;  // prompts and answers, of the whole job
};
IterationTime iteration_time(const Job& job);

}  // namespace trireme::plan
