#include "torch/torch.hpp"

#include "harness/site.hpp"

namespace trireme::perf {

Site enter_site(int) { return {}; }
void wait_for(const Site&) {}

}  // namespace trireme::perf
