#include "plan/generation_bytes.hpp"

#include <algorithm>
#include <utility>

#include "trireme/base/checked.hpp"
#include "trireme/plan/pass_bytes.hpp"

namespace trireme::plan {
namespace {

constexpr int64_t float_bytes = 4, index_bytes = 8;

// Of kernels/paged_attention.hpp and kernels/draw.hpp.
constexpr int64_t attention_positions = 128;  // of a chunk
constexpr int64_t draw_lanes = 16, draw_segments = 256, running_sum = 16, draw_result = 56,
                  draw_summary = 24, draw_row = 88;

// Of generate/decode_graphs.cpp, and what CUDA may take for each: set by hand, not measured.
constexpr int64_t most_recordings = 32, recording_of_cuda = int64_t{8} << 20;

// An operator at a time nothing of a block is given back before it ends: both norms' rows, the sums
// between, what attention and the feed-forward part made. Fused operators keep what is read again:
// the most is there while the gate is computed, where a norm takes a sum with it, or where queries
// are rotated.
int64_t block(const GenerationStep& s) {
  const int64_t hidden = s.shape.hidden;
  if (!s.fused) return s.rows * s.element_bytes * (4 * hidden + 2 * s.q + 2 * s.kv + 3 * s.ffn);
  // Values keep the memory of queries and keys, too, which lie apart once their heads are normed.
  const int64_t normed = s.head_norms ? s.q + s.kv : 0;
  const int64_t rotating = 2 * hidden + 2 * s.q + 2 * s.kv + normed;
  return s.rows * s.element_bytes *
         std::max({2 * hidden + s.q + 3 * s.ffn, 5 * hidden + s.q, rotating});
}

// Memory beside gathered keys and values: nothing of the feed-forward part. Beside rows that
// attend in place, queries and results of prompts' rows are apart.
int64_t attending(const GenerationStep& s) {
  return s.rows * s.element_bytes *
         (2 * s.shape.hidden + (s.in_place && s.running > 1 ? 4 : 2) * s.q +
          (s.fused ? 0 : 2 * s.kv));
}

// Beside the hidden states of all rows those that are drawn from, before and behind the norm and
// widened; and the logits. Fused operators give all rows back when they have taken those that are
// drawn from, of the stream and of what it has not been given yet.
int64_t head(const GenerationStep& s, int64_t logits) {
  const bool widens = s.logit_bytes > s.element_bytes;
  const int64_t piece = widens ? 2 * std::min(s.vocab, vocabulary_chunk) : 0,
                rows = s.rows * s.shape.hidden * s.element_bytes;
  const int64_t multiplying =
      s.running * s.shape.hidden * (2 * s.element_bytes + (widens ? s.logit_bytes : 0)) +
      piece * std::max(s.shape.hidden, s.running) * s.logit_bytes + logits;
  return s.fused ? std::max(2 * rows + s.running * s.shape.hidden * s.element_bytes, multiplying)
                 : rows + multiplying;
}

int64_t draws(const GenerationStep& s) {
  const int64_t chunks = base::ceil_div(s.vocab, vocabulary_chunk);
  int64_t row = float_bytes * std::max(chunks * draw_lanes, vocabulary_chunk) +
                chunks * (draw_lanes * index_bytes + running_sum);
  row += s.degree * (draw_result + draw_summary);
  if (s.truncated)
    row += draw_segments * index_bytes +
           (s.degree > 1 ? s.degree * s.longest_vocab * s.logit_bytes : 0);
  if (s.changes_logits) row += s.vocab * s.logit_bytes;
  return s.running * row;
}

int64_t chunks_of(const GenerationStep& s) {
  return base::ceil_div(s.longest, attention_positions);
}
// fp32 sums of attention in place.
int64_t parts(const GenerationStep& s, int64_t chunks) {
  return chunks * s.q / s.shape.head_dim * (s.shape.head_dim + 2) * float_bytes;
}
int64_t indices(const GenerationStep& s) {
  const int64_t of_sequence = draw_row + 4 * index_bytes + chunks_of(s) * index_bytes +
                              base::ceil_div<int64_t>(s.longest, 16) * 4;
  return (4 * s.rows + s.prefill) * index_bytes + s.running * of_sequence;
}

// A step in which all sequences decode, filled up to one of the sizes (generate/step_indices.hpp):
// by half at most. Its device buffer has room to grow (generate/decode_graphs.cpp).
int64_t recorded(GenerationStep s) {
  const auto filled_up = [](int64_t count) { return base::ceil_div<int64_t>(3 * count, 2); };
  s.rows = s.running = filled_up(s.running);
  s.prefill = 0;
  const int64_t logits = s.running * s.vocab * s.logit_bytes,
                of_parts = parts(s, filled_up(s.running * chunks_of(s)));
  const int64_t page = 2 * s.shape.layers * s.page_size * s.kv * s.element_bytes;
  return 2 * (std::max(block(s), head(s, logits)) + of_parts) + logits + 4 * indices(s) + page;
}

}  // namespace

void GenerationStep::take_slices(const ModelLayout& model, const base::ShardLayout& slices,
                                 int place) {
  head_norms = model.head_norms;
  const auto& tensors = slices.tensors();
  for (size_t p = 0; p < tensors.size(); ++p) {
    const int64_t columns = slices.block(p, place).rows;
    for (const auto& [name, width] :
         {std::pair{"q_proj.weight", &q}, {"k_proj.weight", &kv}, {"up_proj.weight", &ffn}}) {
      if (tensors[p].name.ends_with(name)) *width = columns;
    }
  }
  const size_t head = model.stages.back().back();
  vocab = slices.block(head, place).rows;
  for (int rank = 0; rank < static_cast<int>(degree); ++rank)
    longest_vocab = std::max(longest_vocab, slices.block(head, rank).rows);
}

// A step reads prompts of max_batch_tokens in all, one of which may have been begun before; where
// prompts share pages, few tokens of each may be left.
void GenerationStep::take_work(const config::Options& options, int64_t sequences, int64_t max_batch,
                               bool own_kernels) {
  const auto& o = options.generate;
  running = std::min(sequences, max_batch);
  rows = std::min(sequences * longest, o.max_batch_tokens + max_batch);
  fused = own_kernels && o.fused_operators;
  in_place = own_kernels && o.paged_attention;
  graphs = in_place && o.graphs;
  page_size = o.page_size;
  prefill = running * longest;
  if (in_place && !o.prefix_sharing) prefill = std::min(prefill, o.max_batch_tokens + longest);
  const auto& rollout = options.rollout;
  truncated = rollout.top_p < 1 || rollout.top_k > 0 || rollout.min_p > 0;
  changes_logits =
      rollout.min_new_tokens > 0 || !rollout.logit_bias.empty() || rollout.repetition_penalty != 1;
}

// generate/torch_backend.cpp: rows of recorded steps are filled up by half at most.
void GenerationStep::take_window(int64_t max_batch) {
  window_rows = base::ceil_div<int64_t>(3 * max_batch, 2);
}

GenerationBytes generation_bytes(const GenerationStep& s) {
  const config::ModelShape& m = s.shape;
  GenerationBytes out;
  out.logits = s.running * s.vocab * s.logit_bytes;
  out.gathered = s.prefill * 2 * s.kv * s.element_bytes;
  const int64_t most = std::max({block(s), attending(s) + out.gathered, head(s, out.logits)});
  out.activations = std::max<int64_t>(most - out.gathered - out.logits, 0);
  if (s.in_place) out.parts = parts(s, s.running * chunks_of(s));
  out.indices = indices(s);
  out.draws = draws(s);
  if (s.graphs) out.recorded = recorded(s);
  constexpr int64_t granule = int64_t{2} << 20;  // comm/rank_sums_nccl.cpp
  out.window = base::round_up(s.window_rows * m.hidden * s.element_bytes, granule);
  out.rotation =
      float_bytes * m.head_dim * std::min(m.longest(), std::max<int64_t>(2 * s.longest, 512));
  return out;
}

int64_t host_step_bytes(const config::ModelShape& shape, int degree, int64_t rows, int64_t draws,
                        int64_t element_bytes, int64_t logit_bytes) {
  const int64_t columns = 4 * shape.hidden + 2 * shape.q_dim() + 2 * shape.kv_dim() + 2 * shape.ffn;
  return element_bytes * rows * columns / degree + logit_bytes * draws * shape.vocab / degree;
}

void add_generation(Ledger& ledger, const std::string& owner, const GenerationBytes& bytes,
                    PhaseSet working, PhaseSet caches) {
  const PhaseSet later = every_phase & ~phase_bit(Phase::start);
  const auto add = [&](const char* what, int64_t size, PhaseSet phases) {
    ledger.add({owner, what, Place::device, size, phases, Accuracy::estimate});
  };
  add("activations of a step", bytes.activations, working);
  add("keys and values that a layer gathers", bytes.gathered, working);
  add("attention: sums of chunks", bytes.parts, working);
  add("indices of a step", bytes.indices, working);
  add("logits of a step", bytes.logits, caches & later);
  add("scratch memory of draws", bytes.draws, later);
  add("recorded steps", bytes.recorded, caches & later);
  add("recorded steps: CUDA's own", bytes.recorded > 0 ? most_recordings * recording_of_cuda : 0,
      caches & later);
  if (bytes.window > 0) add("window of sums over the replica's ranks", bytes.window, later);
  add("tables of the rotation of a replica", bytes.rotation, later);
}

}  // namespace trireme::plan
