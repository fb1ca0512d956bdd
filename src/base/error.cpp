#include "trireme/base/error.hpp"

namespace trireme::detail {

void condition_failed(const char* word, const char* condition, const char* file, int line) {
  throw InternalError(base::text(word, " failed: ", condition, " (", file, ":", line,
                                 "): this is a bug in Trireme"));
}

}  // namespace trireme::detail
