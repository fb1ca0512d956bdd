#include "torch/torch.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "trireme/model/forward.hpp"

namespace trireme::model {
namespace {

// transformers, _compute_llama3_parameters: low frequencies are divided by the factor, high ones
// kept, between them a ramp.
float llama3_frequency(float frequency, const config::RopeScaling& scaling) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  const auto original = static_cast<double>(scaling.original_max_positions);
  if (wavelength < original / scaling.high_freq_factor) return frequency;
  if (wavelength > original / scaling.low_freq_factor)
    return static_cast<float>(frequency / scaling.factor);
  const double smooth = (original / wavelength - scaling.low_freq_factor) /
                        (scaling.high_freq_factor - scaling.low_freq_factor);
  return static_cast<float>((1 - smooth) * frequency / scaling.factor + smooth * frequency);
}

// 1 / theta^(2 i / dims), scaled. [dims / 2] fp32 on the CPU, by the same operations as
// transformers.
at::Tensor inverse_frequencies(const Rotation& rotation) {
  const at::Tensor even = at::arange(0, rotation.dims, 2, at::TensorOptions().dtype(at::kFloat));
  const at::Tensor exponents = even.div(static_cast<double>(rotation.dims));
  at::Tensor frequencies = at::reciprocal(at::pow(rotation.theta, exponents));
  const auto& scaling = rotation.scaling;
  if (scaling.kind == config::RopeKind::linear) frequencies = frequencies.div(scaling.factor);
  if (scaling.kind == config::RopeKind::llama3) {
    float* values = frequencies.mutable_data_ptr<float>();
    std::transform(values, values + frequencies.numel(), values,
                   [&](float value) { return llama3_frequency(value, scaling); });
  }
  return frequencies;
}

}  // namespace

Rope make_rope(const Rotation& rotation, int64_t max_positions, at::Device device) {
  const at::Tensor positions = at::arange(max_positions, at::TensorOptions().dtype(at::kFloat));
  const at::Tensor angles = at::outer(positions, inverse_frequencies(rotation));
  return {angles.cos().to(device), angles.sin().to(device)};
}

Ropes make_ropes(const ModelSpec& spec, int64_t max_positions, at::Device device) {
  Ropes out;
  for (const Rotation& rotation : spec.rotations)
    out.push_back(make_rope(rotation, max_positions, device));
  return out;
}

}  // namespace trireme::model
