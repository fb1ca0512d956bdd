#include "torch/torch.hpp"

#include "parity/ranks.hpp"

namespace trireme::test {

at::Tensor summed(const at::Tensor& mine) {
  at::Tensor total = mine.detach().to(at::kDouble).contiguous().clone();
  world().all_reduce(total.data_ptr<double>(), total.numel(), comm::DType::f64, comm::Op::sum);
  return total;
}

at::Tensor rows_of_all(const at::Tensor& mine, int64_t count) {
  const auto rows = static_cast<int64_t>(dealt(count).size());
  const int64_t width = world().max(rows > 0 ? mine.numel() / rows : int64_t{0});
  at::Tensor all = at::zeros({count, width}, at::kDouble);
  const at::Tensor index = at::tensor(dealt(count), at::kLong);
  if (rows > 0) all.index_copy_(0, index, mine.detach().to(at::kDouble).reshape({rows, width}));
  return summed(all);
}

}  // namespace trireme::test
