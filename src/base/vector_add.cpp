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
void add_pair(float* into, const float* a, const float* b, int64_t count) {
  loops().add_pair(into, a, b, count);
}
void add(float* into, const uint16_t* values, int64_t count) {
  loops().add_bf16(into, values, count);
}
void widen(float* to, const uint16_t* from, int64_t count) { loops().widen(to, from, count); }
void round(uint16_t* to, const float* from, int64_t count) { loops().round(to, from, count); }

}  // namespace trireme::base
