#include "cli/variant.hpp"
#include "trireme/driver/gpu.hpp"

namespace trireme::cli {

void enter_variant(config::Device, char**) { driver::enable_gpu(); }

}  // namespace trireme::cli
