// Bytes of a model on one rank, as zero and generate allocate them: the formulas of ShardedModel,
// of its exchanges and of the generator's slices. Legend: N ranks of the shard communicator, D
// hidden, F ffn, V vocabulary, L layers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "trireme/base/shard_layout.hpp"
#include "trireme/config/model_shape.hpp"

namespace trireme::plan {

// A model as the stage loop sees it: tensors, which of them are trained, and for each stage
// (embedding, L blocks, head) those that it gathers. A tied embedding stands in the first and in
// the last stage.
struct ModelLayout {
  // Kept for the backward of a block, a token: columns in the compute type, numbers in fp32.
  struct Kept {
    int64_t values = 0;
    int64_t numbers = 0;
  };
  config::ModelShape shape;
  std::vector<base::TensorSpec> tensors;
  std::vector<bool> trainable = {};  // by tensor
  std::vector<bool> lent = {};       // by tensor: in the memory of another model; empty: none
  std::vector<std::vector<size_t>> stages = {};
  Kept own = {};       // by the program's own operators
  Kept composed = {};  // by LibTorch's
  // A token, in the compute type: what adapters add to a block's values where they are most.
  int64_t adapter_columns = 0;
  bool head_norms = false;  // q and k are normed

  bool is_lent(size_t tensor) const { return !lent.empty() && lent[tensor]; }
  bool borrows() const { return std::ranges::count(lent, true) > 0; }
};
int64_t elements(const ModelLayout& model);  // of all parameters
int64_t trainable_elements(const ModelLayout& model);
// The first stage with a trainable parameter, at which a backward pass ends; the count of stages:
// none has one.
size_t first_trainable_stage(const ModelLayout& model);
// Work of a backward pass, as shares of a forward pass: it differentiates by inputs from the
// first trainable stage on, and by trainable weights. By elements; both 1 where nothing is frozen.
struct BackwardShares {
  double inputs = 1, weights = 1;
};
BackwardShares backward_shares(const ModelLayout& model);
// Of the first blocks, those that no backward pass comes to.
int64_t frozen_blocks(const ModelLayout& model);
// The same model without a trainable parameter.
ModelLayout frozen(ModelLayout model);

// Where the weights of a model lie (comm/shard_exchange.hpp).
enum class Exchange : uint8_t {
  windows,    // the ranks of a node share memory: every weight once, gradients in each rank's part;
              // of several nodes also the sums on their way from node to node
  host_ring,  // own slices and a ring of two stages on each rank, MPI
  device_ring,  // the same on a GPU, NCCL
};

// zero::MemoryUse says what a running model has; the same names, the same numbers (a test compares
// them).
struct ShardedModelBytes {
  int64_t weights_own = 0;     // compute type: own slices; of a window this rank's share of it
  int64_t weights_ring = 0;    // compute type: two neighbouring stages, whole; none in a window
  int64_t gradient_slots = 0;  // fp32: two neighbouring stages, whole
  int64_t receive = 0;         // as gradients are summed: summed slice (device ring), three of them
                               // (windows of several nodes), slices of all other ranks (host ring)
  int64_t master = 0, gradients = 0, moments = 0, average = 0;  // fp32 shards of what is trainable
};
// Over how many ranks a model is cut, and how these exchange it.
struct Sharding {
  Exchange exchange;
  int ranks;
  int ranks_of_node = 1;      // that share this rank's window
  int64_t reduced_bytes = 4;  // of a gradient on its way from rank to rank (train.reduce_dtype)
};
// `average`: of the weights, too (train.enable_ema).
ShardedModelBytes sharded_model_bytes(const ModelLayout& model, int64_t element_bytes, bool average,
                                      const Sharding& sharding);

// Elements of a gradient whose squares a device adds up at a time: LibTorch converts them to fp64
// first.
inline constexpr int64_t norm_chunk = int64_t{1} << 22;

// Elements of a gradient that are rounded at a time where replicas' gradients are summed in bf16.
inline constexpr int64_t replica_piece = int64_t{1} << 24;

// Elements of the optimizer's state that lie on the device at a time where it stays in host memory:
// twice, one piece comes while another one goes back.
inline constexpr int64_t offload_piece = int64_t{1} << 23;

// Device memory of an optimizer step beside state and gradients: the norm, whose chunks
// LibTorch converts to fp64 before it adds them; then, where the state lies in host memory, a piece
// of it and what is rounded and compared of a tensor.
int64_t device_step_bytes(const ModelLayout& model, int ranks, int64_t element_bytes, bool offload);

// fp32: the trainable parameters' gradients of all stages, whole, which a rank keeps where they are
// reduced once a step (train.reduce_once).
int64_t gradient_sum_bytes(const ModelLayout& model, int ranks);

// Trainable elements of one rank's shard, with its padding.
int64_t shard_elements(const ModelLayout& model, int ranks);

// Trainable elements of the stage that has most on one rank.
int64_t largest_stage_slice(const ModelLayout& model, int ranks);

// Page-locked memory through which a rank's arrays on a GPU are copied (machine::HostMirror): slabs
// that arrays share one after the other, each of 64 MiB, or of the next power of two where one
// array is larger: LibTorch rounds page-locked memory up to that.
class MirrorBytes {
 public:
  static constexpr int64_t alignment = 64;
  static int64_t slab(int64_t bytes);  // for an array that found no room
  // `arrays` fp32 arrays of each of a rank's slices of a model's trainable parameters.
  void add(const ModelLayout& model, int ranks, int arrays);
  void add(int64_t bytes);
  int64_t total() const { return total_; }

 private:
  int64_t total_ = 0, left_ = 0;
};

// One rank's slices of a tensor-parallel layout, each rounded up to 64 bytes.
int64_t generator_weight_bytes(const base::ShardLayout& slices, int rank, int64_t element_bytes);

// The copy in 8 bits of those that products take (generate.weights): whole panels of 16 rows,
// groups of 64 columns with a scale.
int64_t generator_int8_bytes(const base::ShardLayout& slices, int rank, bool tied);

// Bytes of keys and values of one token on the rank of a replica that has most KV heads.
int64_t kv_bytes_per_token(const config::ModelShape& shape, int tensor_parallel,
                           int64_t element_bytes);

}  // namespace trireme::plan
