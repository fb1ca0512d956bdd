#include "base/vector_add_body.hpp"

namespace trireme::base {
extern const VectorAdd vector_add_portable{vector_add};
}  // namespace trireme::base
