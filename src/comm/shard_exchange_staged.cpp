#include "comm/shard_exchange_staged.hpp"

#include <utility>

#include "trireme/base/error.hpp"

namespace trireme::comm {
namespace {

// Its memory is pinned once: nobody may enlarge it.
ExchangeOptions with_own_rings(ExchangeOptions options) {
  options.rings.reset();
  return options;
}
}  // namespace

StagedExchange::StagedExchange(Comm comm, std::vector<SlotGeometry> stages,
                               const ExchangeOptions& options)
    : layout_(stages, options.weight_type),
      compute_(static_cast<cudaStream_t>(options.compute_stream)),
      host_(std::move(comm), std::move(stages), with_own_rings(options)),
      own_(layout_.own_bytes(), DeviceBuffer::Kind::plain),
      weights_(layout_.arena_bytes(), DeviceBuffer::Kind::plain),
      arriving_(static_cast<size_t>(layout_.stages())) {
  if (layout_.has_gradients()) {
    gradients_ = DeviceBuffer(layout_.gradient_bytes(), DeviceBuffer::Kind::plain);
    summed_ = DeviceBuffer(layout_.largest_slice() * float_bytes, DeviceBuffer::Kind::plain);
  }
  for (const auto buffer : host_.buffers()) {
    // Pinning makes copies faster; without it (a limit on locked memory) they still work.
    if (!buffer.empty() &&
        cudaHostRegister(buffer.data(), buffer.size(), cudaHostRegisterDefault) == cudaSuccess) {
      pinned_.push_back(buffer.data());
    }
  }
  static_cast<void>(cudaGetLastError());
}

StagedExchange::~StagedExchange() {
  for (void* memory : pinned_) static_cast<void>(cudaHostUnregister(memory));
}

void StagedExchange::copy(void* to, const void* from, int64_t bytes) {
  TRIREME_CUDA_CALL(
      cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, compute_));
  TRIREME_CUDA_CALL(cudaStreamSynchronize(compute_));
}

void StagedExchange::begin_update() {
  host_.begin_update();
  layout_.forget();
}

void StagedExchange::end_update() {
  const ParameterStorage& storage = layout_.storage();
  for (size_t id = 0; id < storage.offset.size(); ++id) {
    if (storage.offset[id] >= 0)
      copy(host_.own_slice(id), own_slice(id), storage.per_rank[id] * layout_.element_bytes());
  }
  host_.end_update();
}

void StagedExchange::gather(int stage) {
  if (layout_.holds(stage)) return;
  layout_.occupy(stage);
  host_.gather(stage);
  arriving_[static_cast<size_t>(stage)] = true;
}

std::vector<std::byte*> StagedExchange::gathered(int stage) {
  layout_.use(stage);
  if (arriving_[static_cast<size_t>(stage)]) {
    const auto from = host_.gathered(stage);
    const int64_t element = layout_.element_bytes();
    copy(layout_.weights(weights_.data(), stage),
         from.front() - layout_.parameters(stage).front().offset * element,
         layout_.elements(stage) * element);
    host_.release(stage);
    arriving_[static_cast<size_t>(stage)] = false;
  }
  return layout_.weight_pointers(weights_.data(), stage);
}

std::vector<float*> StagedExchange::gradients(int stage) {
  layout_.may_write_gradients(stage);
  return layout_.gradient_pointers(gradients_.data(), stage);
}

void StagedExchange::reduce(int stage) {
  layout_.begin_reduction(stage);
  const auto to = host_.gradients(stage);
  copy(to.front(), layout_.gradients(gradients_.data(), stage),
       layout_.gradient_slot(stage).elements * float_bytes);
  host_.reduce(stage);
}

void StagedExchange::finish_reduce(int stage, const std::vector<float*>& into) {
  layout_.end_reduction(stage);
  const auto& parameters = layout_.gradient_slot(stage).parameters;
  EXPECT(into.size() == parameters.size());
  std::vector<std::vector<float>> sums;
  std::vector<float*> pointers;
  for (const auto& p : parameters) sums.emplace_back(static_cast<size_t>(p.per_rank), 0.f);
  for (auto& sum : sums) pointers.push_back(sum.data());
  host_.finish_reduce(stage, pointers);
  auto* staged = reinterpret_cast<float*>(summed_.data());
  for (size_t i = 0; i < sums.size(); ++i) {
    copy(staged, sums[i].data(), parameters[i].per_rank * float_bytes);
    TRIREME_CUDA_CALL(launch_add(into[i], staged, parameters[i].per_rank, compute_));
    staged += parameters[i].per_rank;
  }
}

const ExchangeCounters& StagedExchange::counters() const {
  counters_ = host_.counters();
  counters_.weight_memory += own_.bytes() + weights_.bytes();
  counters_.gradient_memory += gradients_.bytes() + summed_.bytes();
  return counters_;
}

}  // namespace trireme::comm
