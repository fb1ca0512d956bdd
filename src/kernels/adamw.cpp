// The optimizer's passes over LibTorch's threads; the arithmetic is in adamw_body.hpp.
#include "torch/torch.hpp"

#include "trireme/kernels/adamw.hpp"

#include <algorithm>
#include <atomic>
#include <vector>

#include "kernels/lane_kernels.hpp"
#include "trireme/kernels/parallel.hpp"

namespace trireme::kernels {
namespace {

constexpr int64_t grain_words = 256;  // work of one task: 16,384 values
constexpr int64_t norm_block = 4096;
constexpr int64_t grain_values = 65536;

}  // namespace

int64_t adamw(const AdamWShard& shard, const AdamWStep& step) {
  const AdamWFactors factors(step);
  const ShardKernels& kernels = lane_kernels().shard;
  const int64_t words = (shard.elements + adamw_word - 1) / adamw_word;
  std::atomic<int64_t> changed{0};
  parallel_for(0, words, grain_words, [&](int64_t first, int64_t last) {
    changed += kernels.adamw(shard, factors, first, last);
  });
  return changed;
}

double clip_factor(double norm, double max_norm) {
  if (max_norm <= 0) return 1;
  return std::min(1.0, max_norm / (norm + 1e-6));
}

double squared_norm(const float* values, int64_t elements) {
  const int64_t blocks = (elements + norm_block - 1) / norm_block;
  const ShardKernels& kernels = lane_kernels().shard;
  std::vector<double> sums(static_cast<size_t>(blocks));
  parallel_for(0, blocks, grain_values / norm_block, [&](int64_t first, int64_t last) {
    for (int64_t b = first; b < last; ++b) {
      const int64_t begin = b * norm_block;
      sums[static_cast<size_t>(b)] =
          kernels.sum_of_squares(values + begin, std::min(norm_block, elements - begin));
    }
  });
  double total = 0;
  for (const double sum : sums) total += sum;
  return total;
}

void cast_to_bf16(const float* values, uint16_t* out, int64_t elements) {
  const ShardKernels& kernels = lane_kernels().shard;
  parallel_for(0, elements, grain_values, [&](int64_t first, int64_t last) {
    kernels.cast_to_bf16(values + first, out + first, last - first);
  });
}

void moving_average(float* average, const float* values, double beta, int64_t elements) {
  const auto keep = static_cast<float>(beta);
  const auto rate = static_cast<float>(1 - beta);
  const ShardKernels& kernels = lane_kernels().shard;
  parallel_for(0, elements, grain_values, [&](int64_t first, int64_t last) {
    kernels.moving_average(average + first, values + first, keep, rate, last - first);
  });
}

}  // namespace trireme::kernels
