// Shard exchange between GPUs. It lives in a library of its own (trireme_comm_cuda), so that programs for CPUs do not load
// NCCL: the GPU variant of the program calls this once at start, after which make_shard_exchange() serves devices.
#pragma once

namespace trireme::comm {

// Every rank uses the CUDA device that is current when an exchange is made. Not collective.
void enable_device_exchange();

}  // namespace trireme::comm
