#include "trireme/kernels/log_sum_exp.hpp"

#include <cmath>

#include "kernels/lane_kernels.hpp"

namespace trireme::kernels {

float LogSumExp::log_sum_exp() const {
  return static_cast<float>(static_cast<double>(max) + std::log(sum));
}
float LogSumExp::entropy() const { return static_cast<float>(std::log(sum) - weighted / sum); }

void update(LogSumExp& row, const float* logits, int64_t count, float scale) {
  lane_kernels().f32.update(row, logits, count, scale);
}
void update(LogSumExp& row, const uint16_t* logits, int64_t count, float scale) {
  lane_kernels().bf16.update(row, logits, count, scale);
}
void update_with_entropy(LogSumExp& row, const float* logits, int64_t count, float scale) {
  lane_kernels().f32.update_with_entropy(row, logits, count, scale);
}
void update_with_entropy(LogSumExp& row, const uint16_t* logits, int64_t count, float scale) {
  lane_kernels().bf16.update_with_entropy(row, logits, count, scale);
}
void softmax_gradient(const SoftmaxGradient& row, float* logits, int64_t count) {
  lane_kernels().f32.softmax_gradient(row, logits, count);
}
void softmax_gradient(const SoftmaxGradient& row, uint16_t* logits, int64_t count) {
  lane_kernels().bf16.softmax_gradient(row, logits, count);
}

}  // namespace trireme::kernels
