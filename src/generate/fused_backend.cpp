// Legend: m rows of the step.
#include "torch/torch.hpp"

#include "fused_backend.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "trireme/base/checked.hpp"
#include "trireme/base/error.hpp"
#include "trireme/kernels/decode_rows.hpp"
#include "trireme/kernels/scalar_type.hpp"
#include "trireme/kernels/token_log_probs.hpp"

namespace trireme::generate {
namespace {

using kernels::ElementType;

constexpr const char* memory_remedy = "give the job more memory, or use more tensor-parallel ranks";

// Rows that every thread may do for itself: what that adds to a thread's work is less than the
// meetings that it saves.
int64_t most_repeated(int64_t hidden, int threads) {
  constexpr int64_t elements_of_meetings = 128;  // of each thread
  int64_t rows = threads == 1 ? 0 : 1;
  while (rows > 0 && rows < most_rows_in_parts &&
         (rows + 1 - base::ceil_div<int64_t>(rows + 1, threads)) * hidden <=
             elements_of_meetings * threads)
    ++rows;
  return rows;
}

}  // namespace

int64_t FusedBackend::page_bytes(const LocalShape& shape, int64_t page_size) {
  return shape.layers * shape.kv_heads * (page_size / kernels::tile_tokens) *
         kernels::tile_elements(shape.head_dim) * shape.element_bytes();
}

FusedBackend::FusedBackend(const model::ModelSpec& spec, const GeneratorWeights& weights,
                           int64_t pages, int64_t page_size, ThreadTeam& team,
                           const comm::CommView& tensor_parallel, bool shared_sums)
    : weights_(weights),
      shape_(local_shape(spec, weights)),
      spec_(spec),
      page_size_(page_size),
      page_bytes_(page_bytes(shape_, page_size)),
      team_(team),
      comm_(tensor_parallel),
      cache_(pages * page_bytes_, comm::FirstTouch::later, "the KV cache (generate.kv_memory)",
             memory_remedy),
      program_(make_thread_program(spec, weights)),
      rows_(program_.width.size()),
      sampler_(spec.shape.vocab, shape_.vocabulary_first, team, tensor_parallel) {
  VALIDATE(shape_.head_dim <= kernels::largest_head_dim(), ExitCode::configuration, "heads of ",
           shape_.head_dim, " elements are more than the decode kernels take (",
           kernels::largest_head_dim(), "): use the LibTorch backend");
  most_repeated_ = most_repeated(spec.shape.hidden, team_.size());
  if (comm_.size() > 1) sums_ = comm::make_rank_parts(comm_, shared_sums);
  for (const ProgramLinear& linear : program_.linears) {
    if (weights_.int8(linear.weight) != nullptr) {  // adds in an order of its own
      orders_.emplace_back();
      continue;
    }
    // The trainer multiplies the head in chunks of the vocabulary, the other weights whole.
    const int64_t together =
        holds_logits(linear.out) ? std::min(linear.n, kernels::vocabulary_chunk) : linear.n;
    orders_.push_back(order_of(linear, together));
  }
  // Matrix units get x packed, which every thread that multiplies with a row of it does. The weight
  // is read no more often for it: by blocks of rows either way.
  bool in_tiles = team_.size() > 1;
  for (size_t i = 0; i < orders_.size(); ++i)
    in_tiles = in_tiles && (orders_[i].tiles || holds_logits(program_.linears[i].out));
  constexpr int64_t rows_of_a_thread = 128;
  if (in_tiles) fewest_whole_ = rows_of_a_thread * team_.size();
}

kernels::GemmOrder FusedBackend::order_of(const ProgramLinear& linear, int64_t outputs) const {
  kernels::GemmOrder order = kernels::find_order(type_of(linear), linear.k, outputs);
  if (type_of(linear) == shape_.type) return order;
  // An fp32 product of widened operands, which the kernel widens.
  order.ascending = true;
  if (order.block >= linear.k || order.block % kernels::gemm_padding == 0) return order;
  order.matches_library = order.matches_with_bias = false;
  order.block = kernels::gemm_padded(linear.k);
  return order;
}

void FusedBackend::reserve_positions(int64_t positions) {
  if (positions <= rope_positions_) return;
  rope_positions_ = std::min(spec_.shape.longest(), std::max<int64_t>(2 * positions, 512));
  ropes_ = model::make_ropes(spec_, rope_positions_, at::kCPU);
}

void FusedBackend::reserve_rows(int64_t rows, int64_t logit_rows) {
  const auto make = [&](Buffer buffer, int64_t count) {
    if (width(buffer) == 0) return;
    Rows& r = rows_[index_of(buffer)];
    r.stride = kernels::gemm_padded(width(buffer));
    r.element_bytes = static_cast<int64_t>(
        kernels::size_of(holds_logits(buffer) ? shape_.logit_type : shape_.type));
    r.memory = comm::HugeBuffer(std::max<int64_t>(count * r.stride * r.element_bytes, 1),
                                comm::FirstTouch::later, "activations of a generation step",
                                memory_remedy);
    if (most_repeated_ == 0 || !program_.copied[index_of(buffer)]) return;
    r.copy_bytes =
        base::round_up<int64_t>(std::min(most_repeated_, count) * r.stride * r.element_bytes, 4096);
    r.copies =
        comm::HugeBuffer(team_.size() * r.copy_bytes, comm::FirstTouch::later,
                         "activations of a generation step, a copy of each thread", memory_remedy);
  };
  if (rows > capacity_) {
    capacity_ = base::round_up<int64_t>(rows, 64);
    if (sums_) sums_->reserve(capacity_ * width(Buffer::partials));
    for (size_t buffer = index_of(Buffer::values); buffer < rows_.size(); ++buffer)
      make(static_cast<Buffer>(buffer), capacity_);
  }
  if (logit_rows > logit_capacity_) {
    logit_capacity_ = base::round_up<int64_t>(logit_rows, 8);
    for (const Buffer buffer :
         {Buffer::selected, Buffer::selected_low, Buffer::logits, Buffer::low_logits})
      make(buffer, logit_capacity_);
  }
}

void FusedBackend::index_rows(const StepBatch& batch) {
  sequence_of_row_.clear();
  page_starts_.clear();
  first_page_.clear();
  for (size_t s = 0; s < batch.sequences.size(); ++s) {
    const SequenceRows& sequence = batch.sequences[s];
    sequence_of_row_.insert(sequence_of_row_.end(), static_cast<size_t>(sequence.rows),
                            static_cast<int32_t>(s));
    first_page_.push_back(page_starts_.size());
    for (const int32_t page : sequence.pages)
      page_starts_.push_back(cache_.data() + std::max(page, 0) * page_bytes_);
  }
}

// Where rotations depend on how long sequences are.
void FusedBackend::fit_ropes(const StepBatch& batch) {
  if (!spec_.shape.rope_scaling.by_length() || batch.rows() == 0) return;
  model::PackedBatch rows;
  rows.positions = at::tensor(batch.positions, at::TensorOptions().dtype(at::kLong));
  for (const SequenceRows& sequence : batch.sequences) {
    rows.cu_seqlens.push_back(rows.tokens() + sequence.rows);
    rows.whole_lengths.push_back(sequence.length);
  }
  model::fit_ropes(spec_, rows, ropes_);
}

void FusedBackend::cap_logits(int64_t count) const {
  if (spec_.shape.logit_cap == 0) return;
  for (int64_t i = 0; i < count; ++i) {
    kernels::cap_logits(at::from_blob(rows(Buffer::logits).row(i), {shape_.vocabulary_rows},
                                      kernels::scalar_type(shape_.logit_type)),
                        spec_.shape.logit_cap);
  }
}

RowWork FusedBackend::work_for(int64_t rows) const {
  if (rows <= most_repeated_) return RowWork::repeated;
  return fewest_whole_ > 0 && rows >= fewest_whole_ ? RowWork::whole : RowWork::shared;
}

std::vector<Drawn> FusedBackend::step(const StepBatch& batch, std::span<const DrawRequest> draws) {
  work_ = work_for(batch.rows());
  reserve_rows(batch.rows(), static_cast<int64_t>(batch.logit_rows.size()));
  index_rows(batch);
  fit_ropes(batch);
  if (work_ == RowWork::whole) ++whole_row_steps_;
  if (batch.rows() > 0) {
    prepare_attention(batch);
    attention_parts_ += std::ssize(attention_.parts) * shape_.layers;
    const bool in_parts = !attention_.parts.empty();
    team_.run([&](int thread) {
      for (const Phase& phase : program_.phases) {
        // Parts of attention need keys and queries of other threads.
        if (phase.meets(work_) || (in_parts && phase.kind == PhaseKind::attend))
          team_.barrier(thread);
        execute(phase, batch, thread);
      }
    });
  }
  cap_logits(static_cast<int64_t>(batch.logit_rows.size()));
  std::vector<kernels::LogitsRow> logits;
  for (const DrawRequest& draw : draws) {
    logits.push_back({shape_.logit_type,
                      draw.kept ? draw.kept.get() : rows(Buffer::logits).row(draw.row),
                      shape_.vocabulary_rows});
  }
  return sampler_.draw(draws, logits);
}

KeptLogits FusedBackend::keep(int64_t row) {
  const std::byte* logits = rows(Buffer::logits).row(row);
  const auto copy = std::make_shared<const std::vector<std::byte>>(
      logits, logits + shape_.vocabulary_rows * rows(Buffer::logits).element_bytes);
  return {copy, copy->data()};
}

// Each row is done by one thread, or by every thread for itself.
template <class OfRow>
void FusedBackend::by_rows(const Phase& phase, int64_t count, int thread, OfRow&& of_row) const {
  const bool repeat = work_ == RowWork::repeated && program_.repeats(phase);
  const auto [first, last] = repeat ? ThreadTeam::Range{0, count} : share_of_rows(thread, count);
  for (int64_t i = first; i < last; ++i) of_row(i);
}

void FusedBackend::execute(const Phase& phase, const StepBatch& batch, int thread) {
  const int64_t m = batch.rows(), selected = static_cast<int64_t>(batch.logit_rows.size());
  switch (phase.kind) {
    case PhaseKind::linears: return linears(phase, phase.of_all_rows() ? m : selected, thread);
    case PhaseKind::columns: return columns(phase, m, thread);
    case PhaseKind::sum: return sum(phase, m, thread);
    case PhaseKind::attend: return attend(phase, thread);
    default: break;
  }
  if (phase.division == model::Division::columns) return execute_columns(phase, batch, thread);
  if (phase.division == model::Division::rows) {
    return by_rows(phase, phase.of_all_rows() ? m : selected, thread,
                   [&](int64_t i) { execute_rows(phase, batch, i, thread); });
  }
  if (work_ != RowWork::repeated)
    return by_rows(phase, m, thread,
                   [&](int64_t i) { execute_heads(phase, batch, i, 0, shape_.kv_heads); });
  deal(std::ssize(attention_.units), thread, team_.size(), [&](int64_t u) {
    const AttentionUnit& unit = attention_.units[static_cast<size_t>(u)];
    for (int64_t i = 0; i < unit.rows; ++i)
      execute_heads(phase, batch, unit.first_row + i, unit.kv_head, 1);
  });
}

void FusedBackend::execute_rows(const Phase& phase, const StepBatch& batch, int64_t i, int thread) {
  if (phase.kind == PhaseKind::look_up) return look_up(phase, batch, i, thread);
  if (phase.kind == PhaseKind::operation)
    return execute_row(phase, batch, i, thread, 0, width(phase.out));
  if (phase.kind == PhaseKind::add_logits) {
    kernels::add_row(shape_.logit_type, row(phase.out, i, thread), row(phase.other, i, thread),
                     width(phase.out));
    return;
  }
  EXPECT(phase.kind == PhaseKind::select);
  std::memcpy(row(phase.out, i, thread),
              row(phase.in, batch.logit_rows[static_cast<size_t>(i)], thread),
              static_cast<size_t>(width(phase.out) * shape_.element_bytes()));
}

void FusedBackend::execute_row(const Phase& phase, const StepBatch& batch, int64_t i, int thread,
                               int64_t first, int64_t count) const {
  const int64_t at = first * shape_.element_bytes();
  const std::byte* const weight = weights_.data(phase.weight);
  model::execute_row(
      phase.operation,
      {.type = shape_.type,
       .in = row(phase.in, i, thread) + at,
       .other = row(phase.other, i, thread) + at,
       .out = row(phase.out, i, thread) + at,
       .elements = count,
       .weight = phase.division == model::Division::heads ? weight : weight + at,
       .position = batch.positions[static_cast<size_t>(i)],
       .ropes = &ropes_,
       .row = i,
       .adapter =
           batch.sequences[static_cast<size_t>(sequence_of_row_[static_cast<size_t>(i)])].adapter,
       .numbers = {weights_.data(phase.numbers[0]), weights_.data(phase.numbers[1]),
                   weights_.data(phase.numbers[2]), weights_.data(phase.numbers[3])}});
}

void FusedBackend::execute_columns(const Phase& phase, const StepBatch& batch, int thread) const {
  const bool whole = work_ == RowWork::whole;
  const int64_t m = batch.rows();
  const ThreadTeam::Range own = whole ? share_of_rows(thread, m) : ThreadTeam::Range{0, m};
  const auto [first, last] = whole
                                 ? ThreadTeam::Range{0, width(phase.out)}
                                 : team_.share(thread, width(phase.out), kernels::gemm_column_unit);
  for (int64_t i = own.first; i < own.last && first < last; ++i)
    execute_row(phase, batch, i, thread, first, last - first);
}

// The weight's row, or column, of a token.
void FusedBackend::look_up(const Phase& phase, const StepBatch& batch, int64_t i, int thread) {
  const bool by_column = std::get<model::LookUp>(phase.operation).columns;
  const base::Block have = weights_.block(phase.weight);
  const int64_t id = batch.ids[static_cast<size_t>(i)] - (by_column ? have.column : have.row);
  const bool mine = id >= 0 && id < (by_column ? have.columns : have.rows);
  const auto element = static_cast<size_t>(shape_.element_bytes());
  const int64_t step = by_column ? have.columns : 1;
  const std::byte* from =
      weights_.data(phase.weight) +
      static_cast<size_t>(mine ? id * (by_column ? 1 : have.columns) : 0) * element;
  if (phase.out != Buffer::partials) {
    EXPECT(mine);
    std::byte* to = row(phase.out, i, thread);
    if (!by_column) return void(std::memcpy(to, from, static_cast<size_t>(phase.width) * element));
    for (int64_t d = 0; d < phase.width; ++d)
      std::memcpy(to + static_cast<size_t>(d) * element,
                  from + static_cast<size_t>(d * step) * element, element);
    return;
  }
  // Every id lies on one rank, so a sum of whole rows is exact in any type; zeros elsewhere.
  float* to = sums_->own(batch.rows() * phase.width) + i * phase.width;
  if (!mine) return void(std::fill_n(to, phase.width, 0.f));
  const auto apart = static_cast<size_t>(step) * element;
  for (int64_t d = 0; d < phase.width; ++d, from += apart) {
    if (shape_.type == ElementType::f32) {
      std::memcpy(to + d, from, sizeof *to);
      continue;
    }
    uint16_t half;
    std::memcpy(&half, from, sizeof half);
    to[d] = std::bit_cast<float>(static_cast<uint32_t>(half) << 16);
  }
}

kernels::GemmArguments FusedBackend::gemm(size_t index, int64_t first, int64_t m,
                                          int thread) const {
  const ProgramLinear& linear = program_.linears[index];
  const Rows &x = rows(linear.in), &y = rows(linear.out);
  kernels::GemmArguments a;
  a.type = shape_.type;
  a.weight = weights_.data(linear.weight);
  a.int8 = weights_.int8(linear.weight);
  a.bias = linear.bias < 0 ? nullptr : weights_.data(static_cast<size_t>(linear.bias));
  a.x = row(linear.in, first, thread);
  a.m = m;
  a.k = linear.k;
  a.n = linear.n;
  a.ldx = x.stride;
  a.y = y.row(first);
  a.ldy = y.stride;
  a.order = orders_[index];
  if (type_of(linear) != shape_.type) a.output = kernels::GemmOutput::f32;
  return a;
}

void FusedBackend::linears(const Phase& phase, int64_t m, int thread) const {
  if (m == 0) return;
  if (work_ == RowWork::whole && phase.of_all_rows()) {
    const auto [first, last] = share_of_rows(thread, m);
    for (size_t i = phase.first; i < phase.first + phase.count; ++i)
      kernels::gemm_columns(gemm(i, first, last - first, thread), 0, program_.linears[i].n);
    return;
  }
  int64_t units = 0;
  for (size_t i = phase.first; i < phase.first + phase.count; ++i)
    units += base::ceil_div(program_.linears[i].n, kernels::gemm_column_unit);
  const auto [first, last] = team_.share(thread, units);
  int64_t start = 0;
  for (size_t i = phase.first; i < phase.first + phase.count; ++i) {
    const int64_t n = program_.linears[i].n;
    const int64_t own = base::ceil_div(n, kernels::gemm_column_unit);
    const int64_t from = std::clamp<int64_t>(first - start, 0, own),
                  to = std::clamp<int64_t>(last - start, 0, own);
    start += own;
    if (from >= to) continue;
    kernels::gemm_columns(gemm(i, 0, m, thread), from * kernels::gemm_column_unit,
                          std::min(to * kernels::gemm_column_unit, n));
  }
}

void FusedBackend::columns(const Phase& phase, int64_t m, int thread) {
  const bool whole = work_ == RowWork::whole;
  const ThreadTeam::Range own = whole ? share_of_rows(thread, m) : ThreadTeam::Range{0, m};
  kernels::GemmArguments a = gemm(phase.first, own.first, own.last - own.first, thread);
  if (phase.out == Buffer::partials) {
    a.y = sums_->own(m * a.n) + own.first * a.n;
    a.ldy = a.n;
    a.output = kernels::GemmOutput::f32;
  }
  const auto [first, last] =
      whole ? ThreadTeam::Range{0, a.n} : team_.share(thread, a.n, kernels::gemm_column_unit);
  kernels::gemm_columns(a, first, last);
}

void FusedBackend::sum(const Phase& phase, int64_t m, int thread) {
  const int64_t d = phase.width;
  if (thread == 0) {
    sums_->meet(m * d);
    sum_bytes_ += m * d * static_cast<int64_t>(sizeof(float));
  }
  team_.barrier(thread);
  const comm::RankParts::Sources parts = sums_->sources();
  by_rows(phase, m, thread, [&](int64_t i) {
    kernels::reduce_row(shape_.type, parts.first + i * d, comm_.size(), parts.stride,
                        row(phase.out, i, thread), d);
  });
}

void FusedBackend::copy_page(int32_t from, int32_t to) {
  std::memcpy(cache_.data() + to * page_bytes_, cache_.data() + from * page_bytes_,
              static_cast<size_t>(page_bytes_));
}

}  // namespace trireme::generate
