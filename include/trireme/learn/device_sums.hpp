// Numbers of a step's micro-batches that are added up where they are computed: the host reads them
// when the step is over, and does not wait for a device before.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace trireme::learn {

class DeviceSums {
 public:
  explicit DeviceSums(int64_t count) : count_(count) {}

  // `parts` have `count` numbers together, all on one device; each is added in fp64. Not
  // differentiated.
  void add(const std::vector<at::Tensor>& parts);
  // Waits for the device once; zeros where nothing was added.
  std::vector<double> read() const;

 private:
  int64_t count_;
  at::Tensor sums_;  // f64 [count]
};

}  // namespace trireme::learn
