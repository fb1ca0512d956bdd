// comm/agree.hpp for checkpoints: a Mismatch of one rank is a Mismatch of all.
#pragma once

#include <functional>

#include "trireme/comm/comm.hpp"

namespace trireme::checkpoint {

// Collective. Runs `work`; when it threw on any rank, every rank throws the error of the lowest one
// that failed, with its exit code and its rank in the message.
void agreed(const comm::CommView& comm, const std::function<void()>& work);

// The same for work of rank 0 alone.
void agreed_on_root(const comm::CommView& comm, const std::function<void()>& work);

}  // namespace trireme::checkpoint
