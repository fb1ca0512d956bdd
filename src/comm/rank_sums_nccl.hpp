// Sums of tensor parallelism on devices. Private to trireme_comm_cuda.
#pragma once

#include <memory>

#include "trireme/comm/rank_sums.hpp"

namespace trireme::comm {

std::unique_ptr<RankSums> make_device_sums(const CommView& comm, bool share_a_device,
                                           void* compute_stream);

}  // namespace trireme::comm
