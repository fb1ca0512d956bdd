// The one file that may see NVTX: its header-only C interface does nothing until a profiler injects
// itself.
#include "trace/recorder.hpp"

#if defined(TRIREME_TRACE_NVTX)
#include <nvtx3/nvToolsExt.h>
#endif

namespace trireme::trace {

bool forward_to_nvtx() {
#if defined(TRIREME_TRACE_NVTX)
  static constexpr Forward nvtx{[](const char* name) { nvtxRangePushA(name); },
                                [] { nvtxRangePop(); }};
  forward = &nvtx;
  return true;
#else
  return false;
#endif
}

}  // namespace trireme::trace
