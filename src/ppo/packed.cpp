#include "torch/torch.hpp"

#include "trireme/ppo/packed.hpp"

#include "trireme/base/error.hpp"
#include "trireme/kernels/to_device.hpp"

namespace trireme::ppo {

using at::Tensor;

Segments::Segments(std::vector<int64_t> cu_seqlens, at::Device device)
    : cu_seqlens_(std::move(cu_seqlens)) {
  VALIDATE(!cu_seqlens_.empty() && cu_seqlens_.front() == 0, ExitCode::internal,
           "cu_seqlens must start with 0");
  std::vector<int64_t> index(static_cast<size_t>(cu_seqlens_.back()));
  for (size_t i = 0; i + 1 < cu_seqlens_.size(); ++i) {
    VALIDATE(cu_seqlens_[i] <= cu_seqlens_[i + 1], ExitCode::internal,
             "cu_seqlens must not decrease");
    std::fill(index.begin() + cu_seqlens_[i], index.begin() + cu_seqlens_[i + 1],
              static_cast<int64_t>(i));
  }
  index_ = kernels::to_device(at::tensor(index, at::kLong), device);
}

Tensor Segments::sums(const Tensor& x) const {
  if (!index_.defined()) return at::zeros({0}, x.options());
  return at::index_add(at::zeros({sequences()}, x.options()), 0, index_, x);
}

Tensor Segments::spread(const Tensor& x) const {
  return index_.defined() ? at::index_select(x, 0, index_) : at::zeros({0}, x.options());
}

Tensor select(const Tensor& x, const Tensor& mask) {
  return at::where(mask.to(at::kBool), x, at::zeros({}, x.options()));
}

}  // namespace trireme::ppo
