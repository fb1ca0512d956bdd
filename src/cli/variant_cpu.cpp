#include <dlfcn.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>

#include "cli/variant.hpp"
#include "trireme/base/error.hpp"

namespace trireme::cli {
namespace {

bool has_gpu_driver() {
  if (::access("/dev/nvidiactl", F_OK) == 0) return true;
  void* driver = ::dlopen("libcuda.so.1",
                          RTLD_LAZY | RTLD_LOCAL);  // where device files have other names (WSL)
  if (driver) ::dlclose(driver);
  return driver != nullptr;
}

// trireme-gpu in the folder of this program; empty when it is not there.
std::string gpu_program() {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return {};
  const auto path = self.parent_path() / "trireme-gpu";
  return ::access(path.c_str(), X_OK) == 0 ? path.string() : std::string();
}

}  // namespace

void enter_variant(config::Device wanted, char** argv) {
  if (wanted == config::Device::cpu) return;
  const std::string program = gpu_program();
  if (program.empty())
    return;  // the run goes on on CPUs, or says that this program has no GPU support
  if (wanted == config::Device::automatic && !has_gpu_driver()) return;
  ::execv(program.c_str(), argv);
  throw UserError(ExitCode::unfit_environment,
                  base::text("cannot start ", program, " (", std::strerror(errno),
                             "): fix it, or ask for \"cpu\" (run.device, --device)"));
}

}  // namespace trireme::cli
