#include "torch/torch.hpp"

#include "upload.hpp"

#include "trireme/kernels/locked_bytes.hpp"

namespace trireme::generate {

at::Tensor host_bytes(int64_t bytes, at::Device device) {
  return device.is_cuda() ? kernels::locked_bytes(bytes)
                          : at::empty({bytes}, at::TensorOptions().dtype(at::kByte));
}

void Upload::send(at::Device device) {
  send_to(at::empty({bytes()}, at::TensorOptions().dtype(at::kByte).device(device)));
}

void Upload::send_to(const at::Tensor& memory) {
  const at::Tensor host = host_bytes(bytes(), memory.device());
  if (bytes() > 0) std::memcpy(host.mutable_data_ptr(), bytes_.data(), bytes_.size());
  device_ = memory.narrow(0, 0, bytes());
  device_.copy_(host, /*non_blocking=*/true);
}

at::Tensor Upload::tensor(const Piece& piece, at::ScalarType type) const {
  const auto element = static_cast<int64_t>(c10::elementSize(type));
  return device_.narrow(0, piece.first, piece.count * element).view(type);
}

}  // namespace trireme::generate
