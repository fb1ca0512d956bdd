#include "model/scaled_weights.hpp"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "trireme/base/error.hpp"
#include "trireme/model/stored_type.hpp"

namespace trireme::model {
namespace {

constexpr std::string_view scale_ending = "_scale_inv";
// Of products whose other side is rounded, too: nothing of the weights.
constexpr std::string_view activation_scale = "activation_scale";

class ScaledWeights : public WeightSource {
 public:
  // `scales`: of each tensor in 8 bits.
  struct Scale {
    std::string name;
    int64_t rows = 0, columns = 0;  // of the tensor, that one scale is for
  };
  using Scales = std::map<std::string, Scale, std::less<>>;

  ScaledWeights(std::shared_ptr<const WeightSource> weights, Scales scales)
      : weights_(std::move(weights)), scales_(std::move(scales)) {}

  std::vector<std::string> names() const override {
    std::vector<std::string> out = weights_->names();
    std::erase_if(out, [](const std::string& name) {
      return name.ends_with(scale_ending) || name.ends_with(activation_scale);
    });
    return out;
  }
  bool contains(std::string_view name) const override { return weights_->contains(name); }
  const base::TensorSpec& spec(std::string_view name) const override {
    return weights_->spec(name);
  }
  std::string_view type_name(std::string_view name) const override {
    return weights_->type_name(name);
  }
  std::string describe() const override { return weights_->describe(); }
  void read(std::string_view name, const base::Block& block, float* out) const override {
    const uint64_t before = weights_->bytes_read();
    weights_->read(name, block, out);
    if (const auto found = scales_.find(name); found != scales_.end())
      multiply(found->second, block, out);
    count_bytes(weights_->bytes_read() - before);
  }
  bool copy(std::string_view name, const base::Block& block, StoredType type,
            std::byte* out) const override {
    return !scales_.contains(name) && weights_->copy(name, block, type, out);
  }

 private:
  void multiply(const Scale& scale, const base::Block& block, float* out) const {
    if (block.elements() == 0) return;
    const int64_t top = block.row / scale.rows, left = block.column / scale.columns;
    const base::Block part{top, (block.row + block.rows - 1) / scale.rows - top + 1, left,
                           (block.column + block.columns - 1) / scale.columns - left + 1};
    std::vector<float> factors(static_cast<size_t>(part.elements()));
    weights_->read(scale.name, part, factors.data());
    for (int64_t row = 0; row < block.rows; ++row) {
      const float* of_row = factors.data() + ((block.row + row) / scale.rows - top) * part.columns;
      for (int64_t column = 0; column < block.columns; ++column)
        out[row * block.columns + column] *= of_row[(block.column + column) / scale.columns - left];
    }
  }

  std::shared_ptr<const WeightSource> weights_;
  Scales scales_;
};

bool has_8_bits(const WeightSource& weights, std::string_view name) {
  const auto type = stored_type_of(weights.type_name(name));
  return type == StoredType::f8_e4m3 || type == StoredType::f8_e5m2;
}

// How much of `tensor` one element of `scale` is for.
ScaledWeights::Scale scale_of(const WeightSource& weights, const std::string& name,
                              const config::Fp8Weights& config) {
  const base::TensorSpec& tensor = weights.spec(name);
  ScaledWeights::Scale out{base::text(name, scale_ending), config.block_rows, config.block_columns};
  const base::TensorSpec& scale = weights.spec(out.name);
  if (scale.rows() * scale.columns() == 1) {
    out.rows = std::max<int64_t>(1, tensor.rows());
    out.columns = std::max<int64_t>(1, tensor.columns());
    return out;
  }
  if (config.block_rows == 0) {
    out.rows = 1;
    out.columns = std::max<int64_t>(1, tensor.columns());
  }
  const auto parts = [](int64_t all, int64_t each) { return (all + each - 1) / each; };
  VALIDATE(scale.rows() == parts(tensor.rows(), out.rows) &&
               scale.columns() == parts(tensor.columns(), out.columns),
           ExitCode::bad_data, weights.describe(), ": '", out.name, "' has the shape ",
           base::shape_text(scale.shape), " for weights of ", base::shape_text(tensor.shape),
           " in blocks of ", out.rows, " x ", out.columns,
           " (weight_block_size of config.json): weights and config.json do not belong together");
  return out;
}

}  // namespace

std::shared_ptr<const WeightSource> with_scales(std::shared_ptr<const WeightSource> weights,
                                                const std::optional<config::Fp8Weights>& config) {
  ScaledWeights::Scales scales;
  bool any_scale = false;
  for (const std::string& name : weights->names()) {
    any_scale = any_scale || name.ends_with("_scale") || name.ends_with(scale_ending);
    if (!has_8_bits(*weights, name)) continue;
    const bool scaled = weights->contains(base::text(name, scale_ending));
    VALIDATE(scaled || !config, ExitCode::bad_data, weights->describe(), ": '", name,
             "' has 8 bits and no '", name, scale_ending,
             "', which quantization_config of config.json asks for: download the model again");
    if (config) scales.emplace(name, scale_of(*weights, name, *config));
  }
  const bool unsaid = std::ranges::any_of(
      weights->names(), [&](const std::string& name) { return has_8_bits(*weights, name); });
  VALIDATE(config || !unsaid || !any_scale, ExitCode::bad_data, weights->describe(),
           ": weights of 8 bits with scales, of which config.json says nothing "
           "(quantization_config): use the model's float weights, or add quantization_config as "
           "transformers writes it");
  if (!config) return weights;
  return std::make_shared<ScaledWeights>(std::move(weights), std::move(scales));
}

}  // namespace trireme::model
