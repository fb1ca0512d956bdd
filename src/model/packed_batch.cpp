#include "torch/torch.hpp"

#include "trireme/model/packed_batch.hpp"

#include <algorithm>

#include "trireme/kernels/to_device.hpp"

namespace trireme::model {

PackedBatch pack(std::span<const std::span<const int32_t>> sequences, at::Device device) {
  PackedBatch batch;
  for (const auto& sequence : sequences) {
    const auto length = static_cast<int64_t>(sequence.size());
    batch.cu_seqlens.push_back(batch.cu_seqlens.back() + length);
    batch.max_length = std::max(batch.max_length, length);
  }
  at::Tensor ids = at::empty({batch.tokens()}, at::TensorOptions().dtype(at::kLong));
  at::Tensor positions = at::empty_like(ids);
  int64_t* id = ids.mutable_data_ptr<int64_t>();
  int64_t* position = positions.mutable_data_ptr<int64_t>();
  for (const auto& sequence : sequences) {
    for (size_t i = 0; i < sequence.size(); ++i) {
      *id++ = sequence[i];
      *position++ = static_cast<int64_t>(i);
    }
  }
  batch.ids = kernels::to_device(ids, device);
  batch.positions = kernels::to_device(positions, device);
  if (!device.is_cpu()) {
    batch.cu_seqlens_device = kernels::to_device(
        at::tensor(batch.cu_seqlens, at::TensorOptions().dtype(at::kLong)).to(at::kInt), device);
  }
  return batch;
}

}  // namespace trireme::model
