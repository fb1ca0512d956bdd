// Messages between GPUs. They live in a library of its own (trireme_comm_cuda), so that programs
// for CPUs do not load NCCL: the GPU variant of the program calls this once at start, after which
// make_shard_exchange() and make_rank_sums() serve devices and PinnedBuffer locks its pages.
#pragma once

#include <string>

namespace trireme::comm {

// Every rank uses the CUDA device that is current when an exchange is made. Not collective.
void enable_device_exchange();

// Which GPU of the node a CUDA device of this process is (its PCI bus address): processes may
// number them differently. Makes no context.
std::string device_bus_id(int device);

// Versions of CUDA, 1000 * major + 10 * minor. Makes no context.
struct CudaVersions {
  int driver = 0;   // the newest that this node's driver serves; 0: there is no driver
  int runtime = 0;  // that the program is linked with
};
CudaVersions cuda_versions();

}  // namespace trireme::comm
