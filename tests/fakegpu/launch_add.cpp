// What stands in for src/comm/shard_exchange_add.cu where the order of operations is followed: the
// same values, and the bytes that are used, which a kernel's start does not tell. fakegpu_kernels
// runs the kernel itself.
#include <cstddef>
#include <utility>
#include <vector>

#include "comm/cuda_support.hpp"
#include "fakegpu/fake_gpu.hpp"
#include "trireme/base/bf16.hpp"

namespace trireme::comm {

namespace {

template <class To, class From, class Step>
cudaError_t for_each(To* to, const From* from, int64_t count, cudaStream_t stream, Step step) {
  if (count == 0) return cudaSuccess;
  const auto n = static_cast<size_t>(count);
  return fakegpu::launch(
      stream, {fakegpu::writes(to, n * sizeof(To)), fakegpu::reads(from, n * sizeof(From))}, [=] {
        for (size_t i = 0; i < n; ++i) step(to[i], from[i]);
      });
}

}  // namespace

cudaError_t launch_add(float* into, const float* values, int64_t count, cudaStream_t stream) {
  return for_each(into, values, count, stream, [](float& sum, float value) { sum += value; });
}

cudaError_t launch_add(float* into, const uint16_t* values, int64_t count, cudaStream_t stream) {
  return for_each(into, values, count, stream,
                  [](float& sum, uint16_t value) { sum += base::bf16_to_float(value); });
}

// A GPU's threads have no order: values that are not read yet would be written over.
cudaError_t launch_round(uint16_t* to, const float* from, int64_t count, cudaStream_t stream) {
  const auto *written = reinterpret_cast<const std::byte*>(to),
             *read = reinterpret_cast<const std::byte*>(from);
  if (written < read + 4 * count && read < written + 2 * count) return cudaErrorInvalidValue;
  return for_each(to, from, count, stream,
                  [](uint16_t& rounded, float value) { rounded = base::float_to_bf16(value); });
}

cudaError_t launch_sum_rows(uint64_t* sums, const DeviceRows* rows, const DeviceRows* on_host,
                            int64_t count, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  const auto n = static_cast<size_t>(count);
  std::vector<fakegpu::Range> ranges{fakegpu::writes(sums, n * sizeof(uint64_t)),
                                     fakegpu::reads(rows, n * sizeof(DeviceRows))};
  for (size_t i = 0; i < n; ++i) {
    for (int64_t r = 0; r < on_host[i].rows; ++r)
      ranges.push_back(fakegpu::reads(on_host[i].from + r * on_host[i].stride,
                                      static_cast<size_t>(on_host[i].bytes)));
  }
  return fakegpu::launch(stream, std::move(ranges), [=] {
    for (size_t i = 0; i < n; ++i) {
      sums[i] = 0;
      auto number = static_cast<uint64_t>(rows[i].first);
      for (int64_t r = 0; r < rows[i].rows; ++r) {
        const auto* words = reinterpret_cast<const uint16_t*>(rows[i].from + r * rows[i].stride);
        for (int64_t w = 0; w < rows[i].bytes / summed_word; ++w)
          sums[i] += words[w] * (2 * number++ + 1);
      }
    }
  });
}

}  // namespace trireme::comm
