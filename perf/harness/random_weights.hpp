// Random weights for the generation engine, the same for every program that measures it. Needs
// LibTorch's headers before it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "trireme/generate/weights.hpp"
#include "trireme/model/spec.hpp"

namespace trireme::perf {

// On a GPU other numbers, drawn there: billions of them take a host minutes.
inline void fill_random(const model::ModelSpec& spec, generate::GeneratorWeights& weights) {
  if (weights.place() == generate::Place::device) {
    for (size_t p = 0; p < spec.parameters.size(); ++p) {
      const at::Tensor tensor = weights.tensor(p);
      tensor.copy_(tensor.dim() == 1 ? at::ones_like(tensor)
                                     : at::normal(0.0, 0.02, tensor.sizes(), std::nullopt,
                                                  tensor.options().dtype(at::kFloat)));
    }
    return;
  }
  const std::vector<std::byte*> storage = weights.storage();
  std::vector<float> values;
  for (size_t p = 0; p < storage.size(); ++p) {
    const base::Block block = weights.block(p);
    values.resize(static_cast<size_t>(block.elements()));
    model::initial_values(spec, p, block, 1, values.data());
    if (weights.dtype() == config::DType::f32) {
      std::memcpy(storage[p], values.data(), values.size() * sizeof(float));
    } else {
      for (size_t i = 0; i < values.size(); ++i)
        reinterpret_cast<uint16_t*>(storage[p])[i] = c10::BFloat16(values[i]).x;
    }
  }
}

}  // namespace trireme::perf
