#include "base/vector_add_body.hpp"

namespace trireme::base {
extern const VectorAdd vector_add_avx2{vector_add};
}  // namespace trireme::base
