// Legend: M rows of the step, D hidden, F ffn columns of this rank, V vocabulary rows of this rank, t tensor-parallel ranks.
#include "torch/torch.hpp"

#include "fused_backend.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "trireme/base/checked.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/isa.hpp"
#include "trireme/kernels/decode_rows.hpp"
#include "trireme/model/row_kernels.hpp"

namespace trireme::generate {
namespace {

using kernels::ElementType;

constexpr const char* memory_remedy = "give the job more memory, or use more tensor-parallel ranks";

template <class T>
T* as(std::byte* p) {
  return reinterpret_cast<T*>(p);
}
template <class T>
const T* as(const std::byte* p) {
  return reinterpret_cast<const T*>(p);
}

}  // namespace

int64_t FusedBackend::page_bytes(const LocalShape& shape, int64_t page_size) {
  return shape.layers * shape.kv_heads * (page_size / kernels::tile_tokens) * kernels::tile_elements(shape.head_dim) *
         shape.element_bytes();
}

FusedBackend::FusedBackend(const model::ModelSpec& spec, const GeneratorWeights& weights, int64_t pages, int64_t page_size,
                           ThreadTeam& team, const comm::CommView& tensor_parallel)
    : weights_(weights), shape_(local_shape(spec, weights)), model_shape_(spec.shape),
      epsilon_(static_cast<float>(spec.shape.norm_eps)), page_size_(page_size), page_bytes_(page_bytes(shape_, page_size)),
      team_(team), comm_(tensor_parallel), cache_(pages * page_bytes_, comm::FirstTouch::later, "the KV cache (generate.kv_memory)", memory_remedy) {
  VALIDATE(shape_.head_dim <= kernels::largest_head_dim(), ExitCode::configuration, "heads of ", shape_.head_dim,
           " elements are more than the decode kernels take (", kernels::largest_head_dim(), "): use the LibTorch backend");
  make_layers(spec);
}

FusedBackend::Linear FusedBackend::make_linear(size_t weight, int64_t k, int64_t n, int64_t together) const {
  Linear linear;
  linear.weight = weight;
  linear.k = k;
  linear.n = n;
  linear.order = kernels::find_order(shape_.type, k, together);
  return linear;
}

void FusedBackend::make_layers(const model::ModelSpec& spec) {
  using model::Role;
  const auto linear = [&](Role role, Role bias, bool with_bias, int layer, int64_t k, int64_t n) {
    Linear out = make_linear(spec.index_of(role, layer), k, n, n);
    if (with_bias) out.bias = static_cast<int64_t>(spec.index_of(bias, layer));
    return out;
  };
  const bool qkv = spec.shape.qkv_bias;
  for (int l = 0; l < shape_.layers; ++l) {
    Layer layer;
    layer.q = linear(Role::q, Role::q_bias, qkv, l, shape_.hidden, shape_.q_dim());
    layer.k = linear(Role::k, Role::k_bias, qkv, l, shape_.hidden, shape_.kv_dim());
    layer.v = linear(Role::v, Role::v_bias, qkv, l, shape_.hidden, shape_.kv_dim());
    layer.o = linear(Role::o, Role::o_bias, false, l, shape_.q_dim(), shape_.hidden);
    layer.gate = linear(Role::gate, Role::gate, false, l, shape_.hidden, shape_.ffn);
    layer.up = linear(Role::up, Role::up, false, l, shape_.hidden, shape_.ffn);
    layer.down = linear(Role::down, Role::down, false, l, shape_.ffn, shape_.hidden);
    layer.input_norm = spec.index_of(Role::input_norm, l);
    layer.post_norm = spec.index_of(Role::post_norm, l);
    if (spec.shape.o_bias) layer.o_bias = static_cast<int64_t>(spec.index_of(Role::o_bias, l));
    layers_.push_back(layer);
  }
  embedding_ = spec.index_of(Role::embedding);
  final_norm_ = spec.index_of(Role::final_norm);
  head_ = make_linear(head_parameter(spec), shape_.hidden, shape_.vocabulary_rows, std::min(shape_.vocabulary_rows, kernels::vocabulary_chunk));
}

void FusedBackend::reserve_positions(int64_t positions) {
  if (positions <= rope_positions_) return;
  rope_positions_ = std::min(model_shape_.max_positions, std::max<int64_t>(2 * positions, 512));
  rope_ = model::make_rope(model_shape_, rope_positions_, at::kCPU);
}

void FusedBackend::reserve_rows(int64_t rows, int64_t logit_rows) {
  const auto make = [&](Rows& r, int64_t count, int64_t columns, int64_t bytes) {
    r.stride = kernels::gemm_padded(columns);
    r.element_bytes = bytes;
    r.memory = comm::HugeBuffer(std::max<int64_t>(count * r.stride * bytes, 1), comm::FirstTouch::later, "activations of a generation step",
                                memory_remedy);
  };
  const int64_t bytes = shape_.element_bytes();
  if (rows > capacity_) {
    capacity_ = base::round_up<int64_t>(rows, 64);
    for (Rows* r : {&x_, &normed_, &projected_}) make(*r, capacity_, shape_.hidden, bytes);
    for (Rows* r : {&q_, &attended_}) make(*r, capacity_, shape_.q_dim(), bytes);
    for (Rows* r : {&k_, &v_}) make(*r, capacity_, shape_.kv_dim(), bytes);
    for (Rows* r : {&gate_, &up_}) make(*r, capacity_, shape_.ffn, bytes);
  }
  if (logit_rows > logit_capacity_) {
    logit_capacity_ = base::round_up<int64_t>(logit_rows, 8);
    make(last_, logit_capacity_, shape_.hidden, bytes);
    make(logits_, logit_capacity_, shape_.vocabulary_rows, bytes);
  }
  if (comm_.size() > 1) partials_.resize(static_cast<size_t>(comm_.size() * rows * shape_.hidden));
}

void FusedBackend::index_rows(const StepBatch& batch) {
  sequence_of_row_.clear();
  page_starts_.clear();
  first_page_.clear();
  for (size_t s = 0; s < batch.sequences.size(); ++s) {
    const SequenceRows& sequence = batch.sequences[s];
    sequence_of_row_.insert(sequence_of_row_.end(), static_cast<size_t>(sequence.rows), static_cast<int32_t>(s));
    first_page_.push_back(page_starts_.size());
    for (const int32_t page : sequence.pages) page_starts_.push_back(cache_.data() + page * page_bytes_);
  }
}

std::vector<kernels::LogitsRow> FusedBackend::forward(const StepBatch& batch) {
  reserve_rows(batch.rows(), static_cast<int64_t>(batch.logit_rows.size()));
  index_rows(batch);
  if (batch.rows() > 0) team_.run([&](int thread) { forward_thread(batch, thread); });
  std::vector<kernels::LogitsRow> out;
  for (size_t i = 0; i < batch.logit_rows.size(); ++i) {
    out.push_back({shape_.type, logits_.row(static_cast<int64_t>(i)), shape_.vocabulary_rows});
  }
  return out;
}

void FusedBackend::forward_thread(const StepBatch& batch, int thread) {
  const int64_t m = batch.rows();
  embed(batch, thread);
  norm_rows(layers_.front().input_norm, m, thread);
  team_.barrier();
  for (size_t l = 0; l < layers_.size(); ++l) {
    const Layer& layer = layers_[l];
    const bool last = l + 1 == layers_.size();
    products({{&layer.q, &normed_, &q_}, {&layer.k, &normed_, &k_}, {&layer.v, &normed_, &v_}}, m, thread);
    team_.barrier();
    rotate_and_store(batch, static_cast<int>(l), thread);
    team_.barrier();
    attend(batch, static_cast<int>(l), thread);
    team_.barrier();
    project(layer.o, attended_, layer.o_bias, layer.post_norm, m, thread);
    feed_forward(layer, m, thread);
    team_.barrier();
    project(layer.down, gate_, -1, last ? final_norm_ : layers_[l + 1].input_norm, m, thread);
  }
  logits(batch, thread);
}

void FusedBackend::embed(const StepBatch& batch, int thread) {
  const auto [first, last] = team_.share(thread, batch.rows());
  const base::Block rows = weights_.block(embedding_);
  const int64_t bytes = shape_.hidden * shape_.element_bytes();
  for (int64_t i = first; i < last; ++i) {
    const int64_t id = batch.ids[static_cast<size_t>(i)] - rows.row;
    if (id >= 0 && id < rows.rows) {
      std::memcpy(x_.row(i), weights_.data(embedding_) + id * bytes, static_cast<size_t>(bytes));
    } else {
      std::memset(x_.row(i), 0, static_cast<size_t>(bytes));
    }
  }
  if (comm_.size() == 1) return;
  // Every id lies on one rank, so a sum of whole rows is exact in any type; zeros elsewhere.
  float* mine = partials_.data() + static_cast<int64_t>(comm_.rank()) * batch.rows() * shape_.hidden;
  for (int64_t i = first; i < last; ++i) {
    float* row = mine + i * shape_.hidden;
    if (shape_.type == ElementType::f32) {
      std::memcpy(row, x_.row(i), static_cast<size_t>(bytes));
    } else {
      for (int64_t d = 0; d < shape_.hidden; ++d) {
        const uint32_t bits = static_cast<uint32_t>(as<uint16_t>(x_.row(i))[d]) << 16;
        std::memcpy(row + d, &bits, sizeof bits);
      }
    }
  }
  sum_over_ranks(batch.rows(), thread);
  for (int64_t i = first; i < last; ++i) std::memcpy(x_.row(i), projected_.row(i), static_cast<size_t>(bytes));
}

kernels::GemmArguments FusedBackend::gemm(const Linear& linear, const Rows& x, int64_t m) const {
  kernels::GemmArguments a;
  a.type = shape_.type;
  a.weight = weights_.data(linear.weight);
  a.bias = linear.bias < 0 ? nullptr : weights_.data(static_cast<size_t>(linear.bias));
  a.x = x.row(0);
  a.m = m;
  a.k = linear.k;
  a.n = linear.n;
  a.ldx = x.stride;
  a.order = linear.order;
  return a;
}

void FusedBackend::products(std::initializer_list<Product> list, int64_t m, int thread) const {
  int64_t units = 0;
  for (const Product& p : list) units += base::ceil_div(p.linear->n, kernels::gemm_column_unit);
  const auto [first, last] = team_.share(thread, units);
  int64_t start = 0;
  for (const Product& p : list) {
    const int64_t own = base::ceil_div(p.linear->n, kernels::gemm_column_unit);
    const int64_t from = std::clamp<int64_t>(first - start, 0, own), to = std::clamp<int64_t>(last - start, 0, own);
    start += own;
    if (from >= to) continue;
    kernels::GemmArguments a = gemm(*p.linear, *p.x, m);
    a.y = p.y->row(0);
    a.ldy = p.y->stride;
    kernels::gemm_columns(a, from * kernels::gemm_column_unit, std::min(to * kernels::gemm_column_unit, p.linear->n));
  }
}

void FusedBackend::norm_rows(size_t weight, int64_t rows, int thread) const {
  const auto [first, last] = team_.share(thread, rows);
  const std::byte* w = weights_.data(weight);
  for (int64_t i = first; i < last; ++i) {
    if (shape_.type == ElementType::f32) {
      model::rms_norm_rows(as<float>(x_.row(i)), as<float>(w), as<float>(normed_.row(i)), nullptr, 1, shape_.hidden, epsilon_);
    } else {
      model::rms_norm_rows(as<uint16_t>(x_.row(i)), as<uint16_t>(w), as<uint16_t>(normed_.row(i)), nullptr, 1, shape_.hidden, epsilon_);
    }
  }
}

std::byte* FusedBackend::tile(int32_t page, int layer, int64_t kv_head, int64_t position_in_page) const {
  const int64_t tiles = page_size_ / kernels::tile_tokens;
  const int64_t index = (layer * shape_.kv_heads + kv_head) * tiles + position_in_page / kernels::tile_tokens;
  return cache_.data() + page * page_bytes_ + index * kernels::tile_elements(shape_.head_dim) * shape_.element_bytes();
}

void FusedBackend::rotate_and_store(const StepBatch& batch, int layer, int thread) const {
  const auto [first, last] = team_.share(thread, batch.rows());
  const float* cosine = rope_.cos.const_data_ptr<float>();
  const float* sine = rope_.sin.const_data_ptr<float>();
  for (int64_t i = first; i < last; ++i) {
    const int64_t* position = &batch.positions[static_cast<size_t>(i)];
    const auto rotate = [&]<class T>(T* x, int64_t heads) {
      model::rope_rows(x, position, cosine, sine, x, 1, heads, shape_.head_dim, 1.f);
    };
    if (shape_.type == ElementType::f32) {
      rotate(as<float>(q_.row(i)), shape_.heads);
      rotate(as<float>(k_.row(i)), shape_.kv_heads);
    } else {
      rotate(as<uint16_t>(q_.row(i)), shape_.heads);
      rotate(as<uint16_t>(k_.row(i)), shape_.kv_heads);
    }
    const SequenceRows& sequence = batch.sequences[static_cast<size_t>(sequence_of_row_[static_cast<size_t>(i)])];
    const int32_t page = sequence.pages[static_cast<size_t>(*position / page_size_)];
    for (int64_t h = 0; h < shape_.kv_heads; ++h) {
      const int64_t at = h * shape_.head_dim * shape_.element_bytes();
      kernels::store_kv(shape_.type, tile(page, layer, h, *position % page_size_), *position, k_.row(i) + at, v_.row(i) + at,
                        shape_.head_dim);
    }
  }
}

void FusedBackend::attend(const StepBatch& batch, int layer, int thread) const {
  kernels::AttentionArguments a;
  a.type = shape_.type;
  a.tiles_per_page = page_size_ / kernels::tile_tokens;
  a.group = shape_.group();
  a.head_dim = shape_.head_dim;
  a.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape_.head_dim)));
  // Neighbouring rows see about as many keys: dealing them out in turn balances the threads.
  const int64_t units = batch.rows() * shape_.kv_heads;
  for (int64_t unit = thread; unit < units; unit += team_.size()) {
    const int64_t head = unit / batch.rows(), row = unit % batch.rows();
    const auto sequence = static_cast<size_t>(sequence_of_row_[static_cast<size_t>(row)]);
    const int64_t at = head * shape_.group() * shape_.head_dim * shape_.element_bytes();
    a.pages = page_starts_.data() + first_page_[sequence];
    a.offset = tile(0, layer, head, 0) - cache_.data();
    a.keys = batch.positions[static_cast<size_t>(row)] + 1;
    a.q = q_.row(row) + at;
    a.out = attended_.row(row) + at;
    kernels::attend(a);
  }
}

void FusedBackend::feed_forward(const Layer& layer, int64_t m, int thread) const {
  // Each thread's columns of gate and up are the same, so it multiplies them without waiting for others.
  const auto [first, last] = team_.share(thread, shape_.ffn, kernels::gemm_column_unit);
  kernels::GemmArguments a = gemm(layer.gate, normed_, m);
  a.y = gate_.row(0);
  a.ldy = gate_.stride;
  kernels::gemm_columns(a, first, last);
  a = gemm(layer.up, normed_, m);
  a.y = up_.row(0);
  a.ldy = up_.stride;
  kernels::gemm_columns(a, first, last);
  for (int64_t i = 0; i < m && first < last; ++i) {
    std::byte* gate = gate_.row(i) + first * shape_.element_bytes();
    const std::byte* up = up_.row(i) + first * shape_.element_bytes();
    if (shape_.type == ElementType::f32) {
      model::swiglu(as<float>(gate), as<float>(up), as<float>(gate), last - first);
    } else {
      model::swiglu(as<uint16_t>(gate), as<uint16_t>(up), as<uint16_t>(gate), last - first);
    }
  }
}

void FusedBackend::sum_over_ranks(int64_t m, int thread) {
  team_.barrier();
  if (thread == 0) comm_.all_gather_in_place(partials_.data(), m * shape_.hidden, comm::DType::f32);
  team_.barrier();
  const auto [first, last] = team_.share(thread, m);
  for (int64_t i = first; i < last; ++i) {
    kernels::reduce_row(shape_.type, partials_.data() + i * shape_.hidden, comm_.size(), m * shape_.hidden, projected_.row(i),
                        shape_.hidden);
  }
}

void FusedBackend::project(const Linear& linear, const Rows& x, int64_t o_bias, size_t next_norm, int64_t m, int thread) {
  if (comm_.size() == 1) {
    products({{&linear, &x, &projected_}}, m, thread);
    team_.barrier();
  } else {
    const auto [first, last] = team_.share(thread, linear.n, kernels::gemm_column_unit);
    kernels::GemmArguments a = gemm(linear, x, m);
    a.y = partials_.data() + static_cast<int64_t>(comm_.rank()) * m * shape_.hidden;
    a.ldy = shape_.hidden;
    a.output = kernels::GemmOutput::f32;
    kernels::gemm_columns(a, first, last);
    sum_over_ranks(m, thread);
  }
  const auto [first, last] = team_.share(thread, m);
  for (int64_t i = first; i < last; ++i) {
    if (o_bias >= 0) kernels::add_row(shape_.type, projected_.row(i), weights_.data(static_cast<size_t>(o_bias)), shape_.hidden);
    kernels::add_row(shape_.type, x_.row(i), projected_.row(i), shape_.hidden);
  }
  norm_rows(next_norm, m, thread);
  team_.barrier();
}

void FusedBackend::logits(const StepBatch& batch, int thread) {
  const auto wanted = static_cast<int64_t>(batch.logit_rows.size());
  if (wanted == 0) return;
  const auto [first, last] = team_.share(thread, wanted);
  for (int64_t i = first; i < last; ++i) {
    std::memcpy(last_.row(i), normed_.row(batch.logit_rows[static_cast<size_t>(i)]),
                static_cast<size_t>(shape_.hidden * shape_.element_bytes()));
  }
  team_.barrier();
  products({{&head_, &last_, &logits_}}, wanted, thread);
}

void FusedBackend::copy_page(int32_t from, int32_t to) {
  std::memcpy(cache_.data() + to * page_bytes_, cache_.data() + from * page_bytes_, static_cast<size_t>(page_bytes_));
}

std::vector<const FusedBackend::Linear*> FusedBackend::linears() const {
  const Layer& layer = layers_.front();
  return {&layer.q, &layer.k, &layer.o, &layer.gate, &layer.down, &head_};
}

std::vector<std::string> FusedBackend::differences() const {
  std::set<std::string> out;
  if (comm_.size() > 1) out.insert(base::text("tensor parallelism adds the parts of ", comm_.size(), " ranks"));
  const auto check = [&](const Linear& l, const kernels::GemmOrder& order) {
    if (!(l.bias < 0 ? order.matches_library : order.matches_with_bias)) out.insert(kernels::describe(shape_.type, l.k, l.n, order));
  };
  for (const Linear* l : linears()) check(*l, l->order);
  // The trainer multiplies the head in chunks of the vocabulary.
  if (const int64_t rest = shape_.vocabulary_rows % kernels::vocabulary_chunk; rest > 0) {
    Linear tail = head_;
    tail.n = rest;
    kernels::GemmOrder order = kernels::find_order(shape_.type, tail.k, rest);
    order.matches_library = order.matches_library && std::min(order.block, tail.k) == std::min(head_.order.block, tail.k);
    check(tail, order);
  }
  return {out.begin(), out.end()};
}

std::vector<std::string> FusedBackend::describe() const {
  std::set<std::string> orders;
  const auto add = [&](const Linear& l) { orders.insert(kernels::describe(shape_.type, l.k, l.n, l.order)); };
  for (const Linear* l : linears()) add(*l);
  std::vector<std::string> lines{base::text("generation kernels: ", base::to_string(base::active_isa()), ", rows ",
                                            model::row_kernels_target(), ", ", team_.size(), " threads")};
  for (const std::string& order : orders) lines.push_back("summation order " + order);
  return lines;
}

}  // namespace trireme::generate
