// Start and end of the kernel runtime (Kokkos).
#pragma once

namespace trireme::kernels {

// Initialises Kokkos unless somebody did, and finalises it when it was this guard. One in main,
// after MPI_Init and the choice of the device, before the first kernel; it must end before MPI and
// the CUDA context do.
class Runtime {
 public:
  // threads: of Kokkos' host backend; pass what LibTorch got. device: local GPU number, -1 for
  // none.
  explicit Runtime(int threads = 1, int device = -1);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

 private:
  bool owner_ = false;
};

// "Kokkos 3.4.1, Serial"
const char* runtime_name();

}  // namespace trireme::kernels
