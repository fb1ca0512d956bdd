#include "torch/torch.hpp"

#include "trireme/kernels/copy_sums.hpp"

namespace trireme::kernels {
namespace {

// In words of 64 bits where it is cut into such; else its elements' bits (a copy in words of 64).
at::Tensor bits_of(const at::Tensor& values) {
  const int64_t ratio = int64_t{8} / values.element_size();
  bool divides = values.size(-1) % ratio == 0 && values.storage_offset() % ratio == 0;
  for (int64_t d = 0; d + 1 < values.dim(); ++d) divides &= values.stride(d) % ratio == 0;
  return divides ? values.view(at::kLong)
                 : values.view(values.element_size() == 2 ? at::kShort : at::kInt).to(at::kLong);
}

}  // namespace

CopySums::CopySums(size_t tensors, at::Device device) {
  if (tensors == 0) return;
  sums_ = at::zeros({2, static_cast<int64_t>(tensors)}, at::TensorOptions(device).dtype(at::kLong));
}

void CopySums::add(size_t tensor, const at::Tensor& original, const at::Tensor& copy) {
  if (!sums_.defined()) return;
  const auto place = static_cast<int64_t>(tensor);
  sums_[0][place].copy_(bits_of(original).sum());
  sums_[1][place].copy_(bits_of(copy).sum());
}

int64_t CopySums::first_difference() const {
  if (!sums_.defined()) return -1;
  const at::Tensor wrong = sums_[0].ne(sums_[1]).nonzero();
  return wrong.numel() == 0 ? -1 : wrong[0].item<int64_t>();
}

}  // namespace trireme::kernels
