// The fused engine's work head by head: norms of heads, rotation, the cache and attention.
#include "torch/torch.hpp"

#include <atomic>

#include "fused_backend.hpp"
#include "trireme/base/error.hpp"

namespace trireme::generate {

void FusedBackend::prepare_attention(const StepBatch& batch) {
  constexpr int64_t tile = 16;  // rows of a sequence that share what is read of the cache
  attention_ = share_attention(batch, shape_.kv_heads, team_.size(),
                               work_ == RowWork::repeated ? batch.rows() : tile);
  if (attention_.parts.empty()) return;
  int64_t floats = 0;
  parts_at_.clear();
  for (const AttentionUnit& unit : attention_.units) {
    parts_at_.push_back(floats);
    floats += unit.chunks * kernels::part_floats(unit.rows, shape_.group(), shape_.head_dim);
  }
  parts_done_.assign(attention_.units.size(), 0);
  if (std::ssize(parts_) < floats) parts_.resize(static_cast<size_t>(floats));
}

std::byte* FusedBackend::tile(int32_t page, int layer, int64_t kv_head,
                              int64_t position_in_page) const {
  const int64_t tiles = page_size_ / kernels::tile_tokens;
  const int64_t index =
      (layer * shape_.kv_heads + kv_head) * tiles + position_in_page / kernels::tile_tokens;
  return cache_.data() + page * page_bytes_ +
         index * kernels::tile_elements(shape_.head_dim) * shape_.element_bytes();
}

// Row i, KV heads [first, first + count) and the query heads that share them.
void FusedBackend::execute_heads(const Phase& phase, const StepBatch& batch, int64_t i,
                                 int64_t first, int64_t count) const {
  if (phase.kind == PhaseKind::operation) {
    const int64_t elements = width(phase.in) / shape_.kv_heads;  // for each KV head
    return execute_row(phase, batch, i, 0, first * elements, count * elements);
  }
  EXPECT(phase.kind == PhaseKind::store);
  const int64_t at = first * shape_.head_dim * shape_.element_bytes();
  const std::byte *const keys = rows(phase.in).row(i) + at, *const values =
                                                                rows(phase.other).row(i) + at;
  const int64_t position = batch.positions[static_cast<size_t>(i)];
  const SequenceRows& sequence =
      batch.sequences[static_cast<size_t>(sequence_of_row_[static_cast<size_t>(i)])];
  const int32_t page = sequence.pages[static_cast<size_t>(position / page_size_)];
  for (int64_t h = 0; h < count; ++h) {
    const int64_t head = h * shape_.head_dim * shape_.element_bytes();
    kernels::store_kv(shape_.type, tile(page, phase.layer, first + h, position % page_size_),
                      position, keys + head, values + head, shape_.head_dim);
  }
}

kernels::AttentionArguments FusedBackend::attention(const Phase& phase,
                                                    const AttentionUnit& unit) const {
  const int64_t at = unit.kv_head * shape_.group() * shape_.head_dim * shape_.element_bytes();
  kernels::AttentionArguments a;
  a.type = shape_.type;
  a.pages = page_starts_.data() + first_page_[unit.sequence];
  a.offset = tile(0, phase.layer, unit.kv_head, 0) - cache_.data();
  a.tiles_per_page = page_size_ / kernels::tile_tokens;
  a.keys = unit.keys;
  a.rows = unit.rows;
  a.row_stride = rows(phase.in).stride;
  a.q = rows(phase.in).row(unit.first_row) + at;
  a.out = rows(phase.out).row(unit.first_row) + at;
  a.group = shape_.group();
  a.head_dim = shape_.head_dim;
  const model::Scores& scores = std::get<model::Attend>(phase.operation).scores;
  a.scale = static_cast<float>(scores.scale);
  a.window = scores.window;
  a.cap = static_cast<float>(scores.cap);
  return a;
}

void FusedBackend::attend(const Phase& phase, int thread) {
  if (attention_.parts.empty()) {
    return deal(std::ssize(attention_.units), thread, team_.size(), [&](int64_t u) {
      kernels::attend(attention(phase, attention_.units[static_cast<size_t>(u)]));
    });
  }
  deal(std::ssize(attention_.parts), thread, team_.size(), [&](int64_t i) {
    const auto [unit, chunk] = attention_.parts[static_cast<size_t>(i)];
    const kernels::AttentionArguments a = attention(phase, attention_.units[unit]);
    float* const parts = parts_.data() + parts_at_[unit];
    kernels::attend_chunk(a, chunk, parts);
    // Who comes last puts the parts together.
    std::atomic_ref<int32_t> done(parts_done_[unit]);
    if (done.fetch_add(1, std::memory_order_acq_rel) + 1 < a.chunks()) return;
    done.store(0, std::memory_order_relaxed);
    kernels::merge_chunks(a, parts);
  });
}

}  // namespace trireme::generate
