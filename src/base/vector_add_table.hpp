// The loops of vector_add.hpp, once per instruction set.
#pragma once

#include <cstdint>

namespace trireme::base {

struct VectorAdd {
  void (*add)(float*, const float*, int64_t);
  void (*add_pair)(float*, const float*, const float*, int64_t);
  void (*add_bf16)(float*, const uint16_t*, int64_t);
  void (*widen)(float*, const uint16_t*, int64_t);
  void (*round)(uint16_t*, const float*, int64_t);
};

extern const VectorAdd vector_add_portable;
#if defined(__x86_64__)
extern const VectorAdd vector_add_avx2;
extern const VectorAdd vector_add_avx512;
#endif

}  // namespace trireme::base
