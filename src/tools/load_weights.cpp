#include "tools/load_weights.hpp"

#include <vector>

#include "trireme/model/model_files.hpp"
#include "trireme/model/stored_type.hpp"

namespace trireme::tools {

void load_weights(const model::ModelSpec& spec, const model::WeightSource& source, generate::GeneratorWeights& weights) {
  const auto type = weights.dtype() == config::DType::bf16 ? model::StoredType::bf16 : model::StoredType::f32;
  const auto storage = weights.storage();
  std::vector<float> values;
  for (size_t p = 0; p < spec.parameters.size(); ++p) {
    const base::Block block = weights.block(p);
    values.resize(static_cast<size_t>(block.elements()));
    model::load_parameter(spec, p, block, source, 0, values.data());
    model::from_float(type, values.data(), values.size(), storage[p]);
  }
  weights.set_version(1);
}

}  // namespace trireme::tools
