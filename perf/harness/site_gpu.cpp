#include "torch/torch.hpp"

#include "harness/site.hpp"
#include "trireme/base/error.hpp"
#include "trireme/driver/gpu.hpp"
#include "trireme/machine/device.hpp"

namespace trireme::perf {

Site enter_site(int local_rank) {
  driver::enable_gpu();
  const int gpus = machine::visible_gpus();
  VALIDATE(gpus > 0, ExitCode::unfit_environment, "no GPU is visible to LibTorch");
  const Site site{at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(local_rank % gpus)), true};
  machine::use_device(site.device, false, comm::CommView{});
  return site;
}

void wait_for(const Site& site) { machine::wait_for(site.device); }

}  // namespace trireme::perf
