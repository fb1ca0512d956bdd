// The generation engine of one replica: continuous batching over a paged KV cache. Read as admit ->
// step -> retire.
//
// Texts are bitwise the same whatever the batch limit, chunk of prefill, prefix sharing,
// preemption, thread count and number of replicas: every row of every product is added up in one
// order (kernels/decode_gemm.hpp), attention sees keys in fixed chunks
// (kernels/decode_attention.hpp), draws are counter-based. Across tensor-parallel degrees the order
// differs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trireme/comm/comm.hpp"
#include "trireme/generate/request.hpp"
#include "trireme/generate/weights.hpp"
#include "trireme/model/spec.hpp"

namespace trireme::config {
struct GenerateOptions;
}

namespace trireme::generate {

enum class BackendKind : uint8_t {
  automatic,  // fused on the host, torch on a GPU
  fused,      // kernels of our own, host only
  torch,      // LibTorch operations on any device: the reference
};

struct EngineOptions {
  int64_t page_size = 16;                 // tokens; 16, 32, 64, 128 or 256
  int64_t kv_bytes = int64_t{512} << 20;  // KV cache of this rank; touched only where used
  int64_t max_batch = 64;                 // sequences that run at a time
  int64_t prefill_chunk_tokens =
      512;                     // prompt tokens computed per step, beside the decoding sequences
  int threads = 0;             // 0: LibTorch's number
  std::vector<int> cpus;       // processor of each thread; empty: the kernel chooses
  bool prefix_sharing = true;  // full pages are found again by content, across prompts
  bool sample_sharing = true;  // requests with equal prompts compute it once
  BackendKind backend = BackendKind::automatic;
  // On GPUs: q, k and v of a layer by one product, gate and up by another, and what is between
  // products by few kernels of our own. False: an operator at a time, as the trainer's forward
  // pass.
  bool fused_operators = true;
  // On GPUs: sequences with one row in a step attend to their pages where these lie, by a kernel of
  // our own (kernels/paged_attention.hpp). False: all keys and values are gathered, for LibTorch's
  // attention.
  bool paged_attention = true;
  // On GPUs, with paged_attention: steps in which each sequence has one row are filled up to one of
  // few sizes, recorded and launched as one.
  bool graphs = true;
  // Fused backend: ranks of a replica that share a node read each other's parts of a sum in memory
  // that they share. False: MPI gathers them.
  bool shared_sums = true;
  // Guesses of a sequence's next tokens (prompt_lookup.hpp) that a step computes beside it, 7 over
  // all sequences at most, when no more than config::speculating_sequences run and none is at its
  // prompt; those that are drawn too are kept, so texts and log-probs have the same bits. 0: none.
  // Fused backend only.
  int64_t speculation_tokens = 0;
  // Keys and values that decoding sequences have when the version of the weights changes: false,
  // computed again with the new ones; true, read on.
  bool keep_old_keys = false;
};

// Sums since the construction. Pages count per engine, not per tensor-parallel rank.
struct EngineCounters {
  int64_t steps = 0;
  int64_t decode_steps = 0;     // steps with at least one decoding sequence
  int64_t decode_tokens = 0;    // rows that gave a token, but for a prompt's last
  int64_t proposed_tokens = 0;  // guesses that were computed
  int64_t accepted_tokens =
      0;  // those of them that gave a token: as many steps of a sequence were saved
  int64_t prefill_tokens =
      0;  // prompt tokens computed (recomputed ones after a preemption included)
  int64_t shared_tokens = 0;  // prompt tokens taken from pages that were there
  int64_t old_tokens = 0;     // whose keys and values were kept when the weights changed
                              // (EngineOptions::keep_old_keys), counted at each change
  int64_t pages_copied = 0;   // copy on write
  int64_t preemptions = 0;
  int64_t pages_total = 0;
  int64_t pages_used = 0;  // now, by running sequences
  int64_t pages_peak = 0;
  int64_t page_room = 0;  // tokens that the pages in use had room for, summed over steps
  int64_t page_room_unused =
      0;  // and for how many more than they held: in the last page of each sequence
  int64_t page_bytes = 0;  // of one page on this rank
  int64_t generated_tokens = 0;
  int64_t finished = 0;
  int64_t running = 0;  // sequences, now
  int64_t attention_calls =
      0;  // of LibTorch's attention over gathered pages: at most one a step and layer
  int64_t paged_attention_calls = 0;  // of our own over pages in place: likewise
  int64_t graph_steps = 0;            // that were recorded before and launched as one
  int64_t graphs_recorded = 0;
  int64_t whole_row_steps =
      0;  // in which each row was one of the host's threads', with all outputs of its products
  int64_t attention_parts = 0;  // chunks of keys, layers and KV heads that the host's threads
                                // shared since there were few sequences
  int64_t uploads = 0;          // of a step's indices to where it is computed, one each
  int64_t device_waits = 0;     // times that the host waited for the device: once a step that draws
  int64_t sum_bytes = 0;        // of this rank's partial results that were added to other ranks'
  int64_t sum_host_bytes = 0;   // those of them that went through host memory
  int64_t sum_window_bytes =
      0;  // those of them in memory that the GPUs of a node see of each other
};

struct StepOutput {
  std::vector<Token> tokens;
  std::vector<Result> finished;
  std::vector<WrittenTurn> paused;
};

// The backend that the deck's generate.backend means here.
BackendKind backend_kind(config::GenerateBackend backend);
// Options of the deck's [generate] section; the caller sets kv_bytes, max_batch and keep_old_keys.
EngineOptions engine_options(const config::GenerateOptions& options, int threads,
                             const std::vector<int>& cpus);

class Engine {
 public:
  // `weights` must outlive the engine and be this rank's slice; `tensor_parallel` joins the ranks
  // of one replica (null view: one rank). Collective over it. Throws UserError(configuration) for
  // options that do not fit each other, out_of_memory.
  Engine(const model::ModelSpec& spec, const GeneratorWeights& weights,
         const EngineOptions& options, const comm::CommView& tensor_parallel = {});
  Engine(const Engine&) = delete;
  ~Engine();

  // Queues a request. Throws UserError(configuration) when it can never run: an empty prompt, an id
  // outside the vocabulary, a prompt as long as the model's positions, or a sequence that alone
  // needs more pages than there are. All ranks of the replica submit the same requests in the same
  // order.
  void submit(Request request);

  // One forward pass over the running sequences: a token of each, and those behind it that were
  // guessed. Collective over the replica.
  StepOutput step();
  bool idle() const;  // nothing waits, nothing runs; sequences may be paused
  int64_t unfinished() const;
  // A paused sequence continues with a turn after `tokens`, an observation of at least one token
  // that leaves room for another; `stop` as in Request, of that turn. Its pages are found again by
  // their content, as far as no other sequence needed them meanwhile and prefix_sharing is on;
  // the rest is computed again. It waits before requests that have not begun. All ranks of the
  // replica alike.
  void resume(uint64_t request, std::span<const int32_t> tokens,
              std::function<bool(int32_t token)> stop = {});
  // A paused sequence is finished. All ranks of the replica alike.
  Result finish(uint64_t request);
  // Tokens written so far of each unfinished request, in id order; nothing of some.
  std::vector<Result> standing() const;
  // Ids of the unfinished requests, in the order in which they get slots, paused ones at the end.
  std::vector<uint64_t> queue() const;
  // Ids of the unfinished requests of which at least so many tokens are written.
  std::vector<uint64_t> longer(int64_t tokens) const;
  // Forgets unfinished requests and what is written of them; how many tokens these were. All ranks
  // of the replica alike.
  int64_t cancel(std::span<const uint64_t> requests);
  // Puts requests that wait into this order, those that it does not name behind. All ranks of the
  // replica alike.
  void arrange(std::span<const uint64_t> order);
  // Forgets what it has computed, but not its tokens: from now on its steps depend on the
  // requests and their order alone. Keys and values of running sequences are computed again. Local.
  void begin_anew();

  // Submits all, of one turn each, and steps until all are finished; `on_finish` is called in order
  // of completion.
  // Collective.
  void run(std::vector<Request> requests, const std::function<void(Result)>& on_finish);

  // Gives back the KV memory (running sequences are recomputed after the next step begins, which
  // takes it again).
  void release();

  const EngineCounters& counters() const;
  // Instruction set, summation orders found, threads, pages: one line each, for the log.
  std::vector<std::string> describe() const;
  // Why this engine's log-probs may differ in their bits from those that a training forward pass of
  // the same weights gives on this machine, one reason each; empty: they are equal (fp32 and bf16,
  // any batch, packing and number of ranks). Found by a bitwise self-test of the library's matrix
  // products at construction.
  std::vector<std::string> differences_from_training() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme::generate
