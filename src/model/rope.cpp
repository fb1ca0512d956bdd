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

// transformers, _compute_yarn_parameters: between two pairs of elements a ramp from the frequencies
// as they are to those divided by the factor.
at::Tensor yarn_frequencies(const at::Tensor& powers, const Rotation& rotation) {
  const auto& scaling = rotation.scaling;
  const auto dims = static_cast<double>(rotation.dims);
  const auto pair_of = [&](double turns) {
    return dims *
           std::log(static_cast<double>(scaling.original_max_positions) /
                    (turns * 2 * std::numbers::pi)) /
           (2 * std::log(rotation.theta));
  };
  double low = pair_of(scaling.beta_fast), high = pair_of(scaling.beta_slow);
  if (scaling.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dims - 1);
  if (low == high) high += 0.001;
  const at::Tensor ramp =
      at::clamp(at::arange(rotation.dims / 2, powers.options()).sub(low).div(high - low), 0, 1);
  const at::Tensor kept = at::rsub(ramp, 1);
  return at::reciprocal(powers.mul(scaling.factor))
      .mul(at::rsub(kept, 1))
      .add(at::reciprocal(powers).mul(kept));
}

// Of a sequence of `length` tokens, for the kinds that depend on it. [dims / 2] fp32 on the CPU, by
// the same operations as transformers.
at::Tensor inverse_frequencies(const Rotation& rotation, int64_t length) {
  const auto& scaling = rotation.scaling;
  const at::Tensor even = at::arange(0, rotation.dims, 2, at::TensorOptions().dtype(at::kFloat));
  const at::Tensor exponents = even.div(static_cast<double>(rotation.dims));
  double theta = rotation.theta;
  if (scaling.kind == config::RopeKind::dynamic) {
    const auto usual = static_cast<double>(scaling.original_max_positions);
    const auto dims = static_cast<double>(rotation.dims);
    theta *= std::pow(scaling.factor * std::max(static_cast<double>(length), usual) / usual -
                          (scaling.factor - 1),
                      dims / (dims - 2));
  }
  at::Tensor powers = at::pow(theta, exponents);
  if (scaling.kind == config::RopeKind::yarn) return yarn_frequencies(powers, rotation);
  if (scaling.kind == config::RopeKind::longrope) {
    const auto& factors =
        length > scaling.original_max_positions ? scaling.long_factor : scaling.short_factor;
    powers = at::tensor(factors, at::TensorOptions().dtype(at::kFloat)).mul(powers);
  }
  at::Tensor frequencies = at::reciprocal(powers);
  if (scaling.kind == config::RopeKind::linear) frequencies = frequencies.div(scaling.factor);
  if (scaling.kind == config::RopeKind::llama3) {
    float* values = frequencies.mutable_data_ptr<float>();
    std::transform(values, values + frequencies.numel(), values,
                   [&](float value) { return llama3_frequency(value, scaling); });
  }
  return frequencies;
}

Rope rope_of(const at::Tensor& angles, const Rotation& rotation, at::Device device) {
  const double factor = rotation.scaling.attention_factor;
  if (factor == 1) return {angles.cos().to(device), angles.sin().to(device), {}};
  return {angles.cos().mul(factor).to(device), angles.sin().mul(factor).to(device), {}};
}

}  // namespace

Rope make_rope(const Rotation& rotation, int64_t max_positions, at::Device device) {
  const at::Tensor positions = at::arange(max_positions, at::TensorOptions().dtype(at::kFloat));
  return rope_of(at::outer(positions, inverse_frequencies(rotation, 0)), rotation, device);
}

Ropes make_ropes(const ModelSpec& spec, int64_t max_positions, at::Device device) {
  Ropes out;
  for (const Rotation& rotation : spec.rotations)
    out.push_back(make_rope(rotation, max_positions, device));
  return out;
}

void fit_ropes(const ModelSpec& spec, const PackedBatch& batch, Ropes& ropes) {
  if (batch.tokens() == 0) return;
  for (size_t i = 0; i < ropes.size(); ++i) {
    const Rotation& rotation = spec.rotations[i];
    if (!rotation.scaling.by_length()) continue;
    const at::Device device = ropes[i].cos.device();
    const at::Tensor positions = batch.positions.to(at::kCPU).to(at::kFloat);
    std::vector<at::Tensor> angles;
    for (int64_t s = 0; s < batch.sequences(); ++s) {
      const auto at = static_cast<size_t>(s);
      const int64_t first = batch.cu_seqlens[at], rows = batch.cu_seqlens[at + 1] - first;
      const int64_t length = batch.whole_lengths.empty() ? rows : batch.whole_lengths[at];
      angles.push_back(
          at::outer(positions.narrow(0, first, rows), inverse_frequencies(rotation, length)));
    }
    ropes[i] = rope_of(at::cat(angles), rotation, device);
    ropes[i].of_tokens =
        at::arange(batch.tokens(), at::TensorOptions().dtype(at::kLong).device(device));
  }
}

}  // namespace trireme::model
