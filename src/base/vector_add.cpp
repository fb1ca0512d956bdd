#include "trireme/base/vector_add.hpp"

#include "base/vector_add_table.hpp"
#include "trireme/base/isa.hpp"

namespace trireme::base {
namespace {

const VectorAdd& loops() {
#if defined(__x86_64__)
  if (active_isa() >= Isa::avx512) return vector_add_avx512;
  if (active_isa() >= Isa::avx2) return vector_add_avx2;
#endif
  return vector_add_portable;
}

}  // namespace

void add(float* into, const float* values, int64_t count) { loops().add(into, values, count); }
void add_pair(float* into, const float* a, const float* b, int64_t count) { loops().add_pair(into, a, b, count); }

}  // namespace trireme::base
