#include "torch/torch.hpp"

#include "trireme/kernels/row_invariant.hpp"

#include <algorithm>

namespace trireme::kernels {

// 32 is also enough for shapes so small that oneDNN would leave them to other code (M K N up to 4096).
int64_t invariant_rows() { return std::max<int64_t>(32, 8 * at::get_num_threads()); }

at::Tensor pad_rows(const at::Tensor& x) {
  const int64_t missing = x.is_cpu() ? invariant_rows() - x.size(0) : 0;
  if (missing <= 0) return x;
  return at::cat({x, at::zeros({missing, x.size(1)}, x.options())}, 0);
}

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  if (x.size(0) == 0 || !x.is_cpu() || x.size(0) >= invariant_rows()) return at::linear(x, weight, bias);
  return at::linear(pad_rows(x), weight, bias).narrow(0, 0, x.size(0));
}

}  // namespace trireme::kernels
