// Bytes of what a generator on a GPU holds beside weights and KV pages: the live tensors of
// LibTorch's backend (generate/torch_backend.cpp) and of what draws its tokens
// (tensor_sampler.cpp), from their shapes. What LibTorch's attention takes for itself is not in
// here.
#pragma once

#include <cstdint>
#include <string>

#include "trireme/config/model_shape.hpp"
#include "trireme/config/options.hpp"
#include "trireme/plan/ledger.hpp"
#include "trireme/plan/model_bytes.hpp"

namespace trireme::plan {

// The fullest step of one rank of a replica.
struct GenerationStep {
  const config::ModelShape& shape;
  int64_t degree = 1;         // ranks of the replica
  int64_t element_bytes = 2;  // of the compute type
  int64_t logit_bytes = 2;
  int64_t longest = 0;                        // positions of a sequence
  int64_t q = 0, kv = 0, ffn = 0, vocab = 0;  // columns of this rank's slices
  int64_t longest_vocab = 0;                  // of all ranks'
  int64_t rows = 0;                           // that it computes
  int64_t running = 0;                        // sequences, each of which draws a token
  int64_t prefill = 0;                        // positions of sequences that read their prompts
  int64_t window_rows = 0;                    // of products that are summed in a window
  bool head_norms = false;
  bool fused = true;            // several operators at a time (generate/fused_operators.hpp)
  bool in_place = true;         // the others attend to pages where these lie
  bool graphs = true;           // steps of decoding are recorded
  int64_t page_size = 16;       // positions
  bool truncated = false;       // draws from the likeliest
  bool changes_logits = false;  // forbidden ids, biases

  // Of rank `place` of a replica.
  void take_slices(const ModelLayout& model, const base::ShardLayout& slices, int place);
  // Of a replica that writes `sequences` answers of `longest` positions each, at most `max_batch`
  // at a time.
  void take_work(const config::Options& options, int64_t sequences, int64_t max_batch,
                 bool own_kernels);
  // Of a replica whose products of decoding are summed in a window.
  void take_window(int64_t max_batch);
};

struct GenerationBytes {
  int64_t activations =
      0;  // of one block, or of the head, beyond what the next two are: never all of them at a time
  int64_t gathered = 0;  // keys and values of a layer
  int64_t logits = 0;    // they stay until the next step
  int64_t parts = 0;     // fp32 sums of chunks of positions, of attention in place
  int64_t indices = 0;   // a step's upload
  int64_t draws = 0;     // scratch memory that stays
  int64_t recorded = 0;  // outputs of recorded steps, twice since they are done once
                         // before; numbers, logits and a page. Not CUDA's own
  int64_t rotation = 0;  // tables
  int64_t window = 0;    // of sums over the replica's ranks
};
GenerationBytes generation_bytes(const GenerationStep& step);
// As entries of `owner`'s. `working`: the phases in which it writes; `caches`: those in which KV
// pages stand.
void add_generation(Ledger& ledger, const std::string& owner, const GenerationBytes& bytes,
                    PhaseSet working, PhaseSet caches);

// On hosts: the fullest step of one rank, of so many rows and draws.
int64_t host_step_bytes(const config::ModelShape& shape, int degree, int64_t rows, int64_t draws,
                        int64_t element_bytes, int64_t logit_bytes);

}  // namespace trireme::plan
