#include "comm/shard_exchange_staged.hpp"

#include <utility>

#include "trireme/base/error.hpp"

namespace trireme::comm {
namespace {
constexpr int64_t kFloat = sizeof(float);
}

StagedExchange::StagedExchange(Comm comm, std::vector<SlotGeometry> stages, const ExchangeOptions& options)
    : stages_(std::move(stages)), arena_(stages_), ring_(arena_), storage_(stages_, 1),
      element_(static_cast<int64_t>(size_of(options.weight_type))), compute_(static_cast<cudaStream_t>(options.compute_stream)),
      host_(std::move(comm), stages_, options), own_(storage_.elements * element_, DeviceBuffer::Kind::plain),
      weights_(arena_.elements() * element_, DeviceBuffer::Kind::plain), arriving_(stages_.size()) {
  if (options.gradients) {
    gradients_ = DeviceBuffer(arena_.elements() * kFloat, DeviceBuffer::Kind::plain);
    summed_ = DeviceBuffer(largest_slice(stages_) * kFloat, DeviceBuffer::Kind::plain);
  }
  for (const HostBuffer* buffer : host_.buffers()) {
    // Pinning makes copies faster; without it (a limit on locked memory) they still work.
    if (buffer->bytes() > 0 &&
        cudaHostRegister(buffer->data(), static_cast<size_t>(buffer->bytes()), cudaHostRegisterDefault) == cudaSuccess) {
      pinned_.push_back(buffer->data());
    }
  }
  static_cast<void>(cudaGetLastError());
}

StagedExchange::~StagedExchange() {
  for (void* memory : pinned_) static_cast<void>(cudaHostUnregister(memory));
}

void StagedExchange::copy(void* to, const void* from, int64_t bytes) {
  TRIREME_CUDA_CALL(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, compute_));
  TRIREME_CUDA_CALL(cudaStreamSynchronize(compute_));
}

void StagedExchange::begin_update() {
  host_.begin_update();
  ring_.forget();
}

void StagedExchange::end_update() {
  for (size_t id = 0; id < storage_.offset.size(); ++id) {
    if (storage_.offset[id] >= 0) copy(host_.own_slice(id), own_slice(id), storage_.per_rank[id] * element_);
  }
  host_.end_update();
}

void StagedExchange::gather(int stage) {
  if (ring_.holds(stage)) return;
  ring_.occupy(stage);
  host_.gather(stage);
  arriving_[static_cast<size_t>(stage)] = true;
}

std::vector<std::byte*> StagedExchange::gathered(int stage) {
  if (!ring_.holds(stage)) throw InternalError(base::text("stage ", stage, " is used without a gather"));
  std::byte* base = weights_.data() + arena_.begin(stage) * element_;
  if (arriving_[static_cast<size_t>(stage)]) {
    const auto from = host_.gathered(stage);
    copy(base, from.front() - slot(stage).parameters.front().offset * element_, slot(stage).elements * element_);
    host_.release(stage);
    arriving_[static_cast<size_t>(stage)] = false;
  }
  ring_.use(stage);
  std::vector<std::byte*> pointers;
  for (const auto& p : slot(stage).parameters) pointers.push_back(base + p.offset * element_);
  return pointers;
}

std::vector<float*> StagedExchange::gradients(int stage) {
  auto* base = reinterpret_cast<float*>(gradients_.data()) + arena_.begin(stage);
  TRIREME_CUDA_CALL(cudaMemsetAsync(base, 0, static_cast<size_t>(slot(stage).elements * kFloat), compute_));
  std::vector<float*> pointers;
  for (const auto& p : slot(stage).parameters) pointers.push_back(base + p.offset);
  return pointers;
}

void StagedExchange::reduce(int stage) {
  const auto to = host_.gradients(stage);
  const auto* from = reinterpret_cast<const float*>(gradients_.data()) + arena_.begin(stage);
  copy(to.front() - slot(stage).parameters.front().offset, from, slot(stage).elements * kFloat);
  host_.reduce(stage);
}

void StagedExchange::finish_reduce(int stage, const std::vector<float*>& into) {
  const auto& parameters = slot(stage).parameters;
  EXPECT(into.size() == parameters.size());
  std::vector<std::vector<float>> sums;
  std::vector<float*> pointers;
  for (const auto& p : parameters) sums.emplace_back(static_cast<size_t>(p.per_rank), 0.f);
  for (auto& sum : sums) pointers.push_back(sum.data());
  host_.finish_reduce(stage, pointers);
  auto* staged = reinterpret_cast<float*>(summed_.data());
  for (size_t i = 0; i < sums.size(); ++i) {
    copy(staged, sums[i].data(), parameters[i].per_rank * kFloat);
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
