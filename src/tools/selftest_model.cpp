#include "tools/selftest_model.hpp"

#include <string>

namespace trireme::tools::selftest {

model::ModelSpec tiny_model() {
  config::ModelShape shape;
  shape.vocab = 64;
  shape.hidden = 32;
  shape.layers = 2;
  shape.heads = 4;
  shape.kv_heads = 2;
  shape.head_dim = 8;
  shape.ffn = 48;
  shape.norm_eps = 1e-5;
  shape.max_positions = 64;
  return model::describe(shape, model::HeadKind::language);
}

void initial_rows(const model::ModelSpec& spec, size_t parameter, const base::Block& block,
                  float* out) {
  const base::TensorSpec& tensor = spec.parameters[parameter].spec;
  uint64_t key = 0;
  for (const char c : tensor.name) key += static_cast<unsigned char>(c);
  const bool norm = tensor.shape.size() == 1;
  for (int64_t r = 0; r < block.rows; ++r) {
    for (int64_t c = 0; c < block.columns; ++c) {
      const auto element =
          static_cast<uint64_t>((block.row + r) * tensor.columns() + block.column + c);
      const uint64_t state =
          (element + key * 1000003) * 6364136223846793005ULL + 1442695040888963407ULL;
      const double drawn = static_cast<double>(state >> 40) / 16777216.0 - 0.5;
      *out++ = static_cast<float>(norm ? 1 + 0.1 * drawn : 0.4 * drawn);
    }
  }
}

std::vector<int32_t> sequence(int64_t number) {
  std::vector<int32_t> ids;
  for (int64_t t = 0; t < 5 + number; ++t)
    ids.push_back(static_cast<int32_t>((7 * number + 3 * t + (number * t) % 5) % 64));
  return ids;
}

int64_t targets() {
  int64_t count = 0;
  for (int64_t s = 0; s < sequences; ++s) count += std::ssize(sequence(s)) - 1;
  return count;
}

}  // namespace trireme::tools::selftest
