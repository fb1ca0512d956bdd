#include "trireme/kernels/runtime.hpp"

#include <Kokkos_Core.hpp>

#include <string>

namespace trireme::kernels {

Runtime::Runtime(int threads, int device) {
  if (Kokkos::is_initialized()) return;
#if KOKKOS_VERSION >= 30700
  Kokkos::InitializationSettings settings;
  settings.set_num_threads(threads);
  if (device >= 0) settings.set_device_id(device);
  Kokkos::initialize(settings);
#else
  Kokkos::InitArguments arguments;
  arguments.num_threads = threads;
  arguments.device_id = device;
  Kokkos::initialize(arguments);
#endif
  owner_ = true;
}

Runtime::~Runtime() {
  if (owner_ && Kokkos::is_initialized()) Kokkos::finalize();
}

const char* runtime_name() {
  static const std::string name = "Kokkos " + std::to_string(KOKKOS_VERSION / 10000) + "." +
                                  std::to_string(KOKKOS_VERSION / 100 % 100) + "." +
                                  std::to_string(KOKKOS_VERSION % 100) + ", " +
                                  Kokkos::DefaultHostExecutionSpace::name();
  return name.c_str();
}

}  // namespace trireme::kernels
