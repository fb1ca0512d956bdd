#include "trireme/comm/shard_exchange.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "comm/shard_exchange_parts.hpp"
#include "trireme/base/checked.hpp"
#include "trireme/base/log.hpp"
#include "trireme/base/vector_add.hpp"

namespace trireme::comm {
namespace {

constexpr int64_t align_elements = 32;  // 64 bytes of bf16, 128 of fp32

constexpr int64_t chunk_elements = 2048;  // 8 KiB: a running sum stays in the first-level cache

const float* floats(const std::byte* values, int64_t first) {
  return reinterpret_cast<const float*>(values) + first;
}
const uint16_t* halves(const std::byte* values, int64_t first) {
  return reinterpret_cast<const uint16_t*>(values) + first;
}

void read(float* to, DType type, const std::byte* values, int64_t first, int64_t count) {
  if (type == DType::bf16) return base::widen(to, halves(values, first), count);
  std::memcpy(to, floats(values, first), static_cast<size_t>(count) * sizeof(float));
}

void add(float* into, DType type, const std::byte* values, int64_t first, int64_t count) {
  type == DType::bf16 ? base::add(into, halves(values, first), count)
                      : base::add(into, floats(values, first), count);
}

// Two ranks on a node and a single rank are the common cases: in fp32 one pass, no intermediate sum
// in memory.
void add_range(float* into, DType type, const Sources& sources, int64_t offset, int64_t count) {
  if (sources.size() == 1) return add(into, type, sources[0], offset, count);
  if (sources.size() == 2 && type == DType::f32)
    return base::add_pair(into, floats(sources[0], offset), floats(sources[1], offset), count);
  float sum[chunk_elements];
  for (int64_t begin = 0; begin < count; begin += chunk_elements) {
    const int64_t n = std::min(chunk_elements, count - begin);
    read(sum, type, sources[0], offset + begin, n);
    for (size_t s = 1; s < sources.size(); ++s) add(sum, type, sources[s], offset + begin, n);
    base::add(into + begin, sum, n);
  }
}

// Values first ... last in bf16, to their final place; every write goes before all
// that is still to be read.
void round_range(float* values, int64_t first, int64_t last) {
  uint16_t rounded[chunk_elements];
  auto* out = reinterpret_cast<std::byte*>(values);
  constexpr auto half = static_cast<int64_t>(sizeof(uint16_t));
  for (int64_t begin = first; begin < last; begin += chunk_elements) {
    const int64_t n = std::min(chunk_elements, last - begin);
    base::round(rounded, values + begin, n);
    std::memcpy(out + begin * half, rounded, static_cast<size_t>(n * half));
  }
}

template <class Body>
void in_pieces(int64_t count, const ParallelFor& parallel_for, const Body& body) {
  constexpr int64_t worth_threads = 1 << 16;
  if (parallel_for && count >= worth_threads) return parallel_for(count, body);
  body(0, count);
}

}  // namespace

std::vector<SlotGeometry> gradient_slots(const std::vector<SlotGeometry>& stages) {
  std::vector<SlotGeometry> out;
  for (const auto& [parameters, elements] : stages) {
    SlotGeometry& slot = out.emplace_back();
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (!parameters[i].trainable) continue;
      const int64_t end = i + 1 < parameters.size() ? parameters[i + 1].offset : elements;
      slot.parameters.push_back(parameters[i]);
      slot.parameters.back().offset = slot.elements;
      slot.elements += end - parameters[i].offset;
    }
  }
  return out;
}

TwoStageArena::TwoStageArena(const std::vector<SlotGeometry>& stages) {
  const auto size = [&stages](size_t s) {
    return base::round_up(stages[s].elements, align_elements);
  };
  for (size_t s = 0; s < stages.size(); ++s) {
    elements_ = std::max(elements_, size(s) + (s + 1 < stages.size() ? size(s + 1) : 0));
  }
  for (size_t s = 0; s < stages.size(); ++s) {
    begin_.push_back(s % 2 == 0 ? 0 : elements_ - size(s));
    end_.push_back(begin_.back() + size(s));
  }
}

ParameterStorage::ParameterStorage(const std::vector<SlotGeometry>& stages, int64_t copies) {
  for (const auto& stage : stages) {
    for (const auto& parameter : stage.parameters) {
      if (parameter.id >= offset.size()) {
        offset.resize(parameter.id + 1, -1);
        per_rank.resize(parameter.id + 1, 0);
      }
      if (offset[parameter.id] >= 0) {
        EXPECT(per_rank[parameter.id] == parameter.per_rank);
        continue;
      }
      offset[parameter.id] = elements;
      per_rank[parameter.id] = parameter.per_rank;
      elements += base::round_up(base::checked_mul(copies, parameter.per_rank), align_elements);
    }
  }
}

RingLayout::RingLayout(std::vector<SlotGeometry> stages, DType weight_type)
    : stages_(std::move(stages)),
      gradient_slots_(gradient_slots(stages_)),
      arena_(stages_),
      gradient_arena_(gradient_slots_),
      storage_(stages_, 1),
      element_(static_cast<int64_t>(size_of(weight_type))),
      held_(stages_.size()),
      in_use_(stages_.size()) {}

int64_t RingLayout::slice_elements(int stage) const {
  int64_t sum = 0;
  for (const auto& parameter : gradient_slot(stage).parameters) sum += parameter.per_rank;
  return sum;
}

int64_t RingLayout::largest_slice() const {
  int64_t largest = 0;
  for (int stage = 0; stage < stages(); ++stage) largest = std::max(largest, slice_elements(stage));
  return largest;
}

RingMemory::Bytes RingLayout::ring_bytes(int64_t received_slices, DType reduce_type) const {
  return {arena_bytes(), gradient_bytes(),
          received_slices * largest_slice() * static_cast<int64_t>(size_of(reduce_type))};
}

RingPlace::RingPlace(const ExchangeOptions& options, RingMemory::Tenant& of,
                     const RingMemory::Bytes& bytes, const RingMemory::Allocate& allocate,
                     ExchangeCounters& counters)
    : tenant(of), memory(options.rings ? options.rings : std::make_shared<RingMemory>()) {
  memory->add(tenant, bytes, allocate);
  if (options.rings) return;
  counters.weight_memory += memory->bytes(RingMemory::weights);
  counters.gradient_memory +=
      memory->bytes(RingMemory::gradients) + memory->bytes(RingMemory::received);
}

std::vector<std::byte*> RingLayout::weight_pointers(std::byte* arena, int stage) const {
  std::vector<std::byte*> pointers;
  for (const auto& parameter : parameters(stage))
    pointers.push_back(weights(arena, stage) + parameter.offset * element_);
  return pointers;
}

std::vector<float*> RingLayout::gradient_pointers(std::byte* arena, int stage) const {
  std::vector<float*> pointers;
  for (const auto& parameter : gradient_slot(stage).parameters)
    pointers.push_back(gradients(arena, stage) + parameter.offset);
  return pointers;
}

void RingLayout::occupy(int stage) {
  for (int other = 0; other < stages(); ++other) {
    if (other == stage || !arena_.overlap(stage, other)) continue;
    if (in_use_[static_cast<size_t>(other)]) {
      throw InternalError(base::text("the weights of stage ", stage,
                                     " were asked for over those of stage ", other,
                                     ", which are still in use"));
    }
    held_[static_cast<size_t>(other)] = false;
  }
  held_[static_cast<size_t>(stage)] = true;
}

void RingLayout::use(int stage) {
  if (!holds(stage)) throw InternalError(base::text("stage ", stage, " is used without a gather"));
  in_use_[static_cast<size_t>(stage)] = true;
}

void RingLayout::forget() { std::fill(held_.begin(), held_.end(), false); }

void RingLayout::may_leave() const {
  for (int stage = 0; stage < stages(); ++stage) {
    if (in_use_[static_cast<size_t>(stage)])
      throw InternalError(
          base::text("another model takes the ring while stage ", stage, " is in use"));
  }
  if (reducing_ >= 0)
    throw InternalError(base::text("another model takes the ring before the reduction of stage ",
                                   reducing_, " is finished"));
}

void RingLayout::may_write_gradients(int stage) const {
  if (reducing_ >= 0 && overlap(stage, reducing_)) {
    throw InternalError(base::text("gradients of stage ", stage, " over those of stage ", reducing_,
                                   ", whose reduction is not finished"));
  }
}

void RingLayout::begin_reduction(int stage) {
  if (reducing_ >= 0) throw InternalError("a reduction was begun before the last one was finished");
  reducing_ = stage;
}

void RingLayout::end_reduction(int stage) {
  if (stage != reducing_)
    throw InternalError(base::text("the reduction of stage ", stage, " was not begun"));
  reducing_ = -1;
}

void add_in_order(float* into, DType type, const Sources& sources, int64_t count,
                  const ParallelFor& parallel_for) {
  in_pieces(count, parallel_for, [&](int64_t first, int64_t last) {
    add_range(into + first, type, sources, first, last - first);
  });
}

void sum_in_order(std::byte* sum, DType type, bool onto, const Sources& sources, int64_t count) {
  float chunk[chunk_elements];
  for (int64_t begin = 0; begin < count; begin += chunk_elements) {
    const int64_t n = std::min(chunk_elements, count - begin);
    float* running = type == DType::f32 ? reinterpret_cast<float*>(sum) + begin : chunk;
    if (!onto) read(running, type, sources[0], begin, n);
    if (onto && type == DType::bf16) read(running, type, sum, begin, n);
    for (size_t s = onto ? 0 : 1; s < sources.size(); ++s) add(running, type, sources[s], begin, n);
    if (type == DType::bf16) base::round(reinterpret_cast<uint16_t*>(sum) + begin, chunk, n);
  }
}

// In parts that double, so that threads may share one: its bf16 values lie where those before it
// lay.
void round_in_place(float* values, int64_t count, const ParallelFor& parallel_for) {
  constexpr int64_t first_part = 1 << 16;
  for (int64_t done = 0, end = std::min(count, first_part); done < count;
       done = end, end = std::min(count, 2 * end)) {
    if (done == 0) {
      round_range(values, 0, end);
    } else {
      in_pieces(end - done, parallel_for, [&](int64_t first, int64_t last) {
        round_range(values, done + first, done + last);
      });
    }
  }
}

DeviceSupport& device_support() {
  static DeviceSupport support;
  return support;
}

std::unique_ptr<ShardExchange> make_shard_exchange(const CommView& comm,
                                                   std::vector<SlotGeometry> stages,
                                                   const ExchangeOptions& wanted) {
  EXPECT(!stages.empty());
  ExchangeOptions options = wanted;
  for (const DType type : {options.weight_type, options.reduce_type})
    EXPECT(type == DType::bf16 || type == DType::f32);
  if (comm.size() == 1) options.reduce_type = DType::f32;
  const auto duplicate = [&comm] { return Comm::duplicate(comm, comm.name() + " exchange"); };
  const bool device = options.device || options.kind == ExchangeKind::device_ring;
  if (device) {
    VALIDATE(device_support().make_exchange != nullptr, ExitCode::unfit_environment,
             "weights were asked for on a GPU, but this program was built without CUDA: set "
             "run.device = \"cpu\", or build "
             "with TRIREME_CUDA=ON");
    return device_support().make_exchange(duplicate(), std::move(stages), options);
  }
  if (options.kind == ExchangeKind::mpi_ring)
    return make_ring_exchange(duplicate(), std::move(stages), options);

  if (options.kind == ExchangeKind::windows)
    return make_node_exchange(duplicate(), std::move(stages), options);
  if (!options.node_weights && discover(comm).nodes > 1)
    return make_ring_exchange(duplicate(), std::move(stages), options);
  try {
    return make_node_exchange(duplicate(), stages, options);
  } catch (const UserError& error) {
    if (error.code() != ExitCode::out_of_memory && error.code() != ExitCode::unfit_environment)
      throw;
    if (comm.rank() == 0)
      log::warning(base::text("weights go through MPI instead of shared memory: ", error.what()));
  }
  return make_ring_exchange(duplicate(), std::move(stages), options);
}

}  // namespace trireme::comm
