#include "torch/torch.hpp"

#include "trireme/generate/load_weights.hpp"

#include <algorithm>
#include <vector>

#include "trireme/base/checked.hpp"
#include "trireme/kernels/parallel.hpp"
#include "trireme/kernels/scalar_type.hpp"
#include "trireme/model/model_files.hpp"
#include "trireme/model/stored_type.hpp"

namespace trireme::generate {
namespace {

// What goes through fp32 together, on one thread: no embedding as a whole, and pieces for all
// threads of a larger matrix.
constexpr int64_t elements_at_a_time = int64_t{1} << 16;

}  // namespace

void load_weights(const model::ModelSpec& spec, const model::WeightSource& source,
                  GeneratorWeights& weights) {
  const auto type = model::stored_type_of(weights.dtype());
  const int64_t element_bytes = config::bytes_per_element(weights.dtype());
  const auto storage = weights.storage();
  std::vector<std::byte> staged;  // one parameter on its way to a device
  for (size_t p = 0; p < spec.parameters.size(); ++p) {
    const base::Block block = weights.block(p);
    const bool device = weights.place() == generate::Place::device;
    if (device) staged.resize(static_cast<size_t>(block.elements() * element_bytes));
    std::byte* const slice = device ? staged.data() : storage[p];
    const int64_t rows =
        std::max<int64_t>(1, elements_at_a_time / std::max<int64_t>(1, block.columns));
    kernels::parallel_for(0, base::ceil_div(block.rows, rows), 1, [&](int64_t piece, int64_t last) {
      std::vector<float> values;
      for (; piece < last; ++piece) {
        const int64_t first = piece * rows;
        const base::Block part{block.row + first, std::min(rows, block.rows - first), block.column,
                               block.columns};
        std::byte* const out = slice + first * block.columns * element_bytes;
        if (model::copy_parameter(spec.parameters[p], part, source, type, out)) continue;
        values.resize(static_cast<size_t>(part.elements()));
        model::load_parameter(spec, p, part, source, 0, values.data());
        model::from_float(type, values.data(), values.size(), out);
      }
    });
    if (device)
      weights.tensor(p).view({-1}).copy_(
          at::from_blob(staged.data(), {block.elements()},
                        at::TensorOptions(kernels::scalar_type(weights.dtype()))));
  }
  weights.set_version(1);
}

}  // namespace trireme::generate
