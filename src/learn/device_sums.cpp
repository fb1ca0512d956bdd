#include "torch/torch.hpp"

#include "trireme/learn/device_sums.hpp"

#include "trireme/base/error.hpp"

namespace trireme::learn {

void DeviceSums::add(const std::vector<at::Tensor>& parts) {
  const at::NoGradGuard no_gradients;
  std::vector<at::Tensor> numbers;
  for (const at::Tensor& part : parts)
    numbers.push_back(part.detach().to(at::kDouble).reshape({-1}));
  const at::Tensor all = at::cat(numbers);
  EXPECT(all.numel() == count_);
  if (sums_.defined()) {
    sums_.add_(all);
  } else {
    sums_ = all;
  }
}

std::vector<double> DeviceSums::read() const {
  if (!sums_.defined()) return std::vector<double>(static_cast<size_t>(count_), 0.0);
  const at::Tensor host = sums_.to(at::kCPU);
  const auto* first = host.const_data_ptr<double>();
  return {first, first + count_};
}

}  // namespace trireme::learn
