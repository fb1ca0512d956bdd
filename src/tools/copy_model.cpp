#include "tools/copy_model.hpp"

#include <algorithm>
#include <vector>

#include "trireme/base/log.hpp"

namespace trireme::tools {

std::shared_ptr<const model::KeptFiles> kept_files(const std::filesystem::path& model,
                                                   const std::filesystem::path& tokenizer) {
  auto kept = std::make_shared<const model::KeptFiles>(model::KeptFiles::read(model, tokenizer));
  if (const std::string what = kept->describe(); !what.empty()) log::info(what);
  return kept;
}

void copy_model(const model::ModelSpec& spec, const ReadBlock& read,
                const std::filesystem::path& folder, const model::ModelExport::Options& options) {
  constexpr int64_t piece = int64_t{16} << 20;  // elements held at a time
  model::ModelExport target(folder, spec, options);
  std::vector<float> values;
  try {
    target.create();
    for (size_t p = 0; p < spec.parameters.size(); ++p) {
      if (!target.has(p)) continue;
      const auto& tensor = spec.parameters[p].spec;
      const int64_t rows_at_once =
          std::max<int64_t>(1, piece / std::max<int64_t>(1, tensor.columns()));
      for (int64_t row = 0; row < tensor.rows(); row += rows_at_once) {
        const base::Block block{row, std::min(rows_at_once, tensor.rows() - row), 0,
                                tensor.columns()};
        values.resize(static_cast<size_t>(block.elements()));
        read(p, block, values.data());
        target.write(p, block, values.data());
      }
    }
    target.sync();
    target.commit();
  } catch (...) {
    target.discard();
    throw;
  }
}

}  // namespace trireme::tools
