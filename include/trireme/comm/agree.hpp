// Work that may fail on some ranks and must then fail on all: without this the others would wait in
// the next collective.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>

#include "trireme/base/error.hpp"
#include "trireme/comm/comm.hpp"

namespace trireme::comm {

// The error of the lowest rank that failed.
struct AgreedFailure {
  int rank = 0;
  ExitCode code = ExitCode::internal;
  int kind = 0;         // what `kind_of` made of it
  std::string message;  // with its rank in front where there are several
};

// Collective. Runs `work`; nullopt when it threw on no rank. `kind_of` tells errors of a caller's
// own type from others. Ranks whose work is done sleep until that of the others is, which may wait
// for a slow disk.
std::optional<AgreedFailure> failure_of_any(
    const CommView& ranks, const std::function<void()>& work,
    const std::function<int(const std::exception&)>& kind_of = {});

// Collective. Runs `work`; when it threw on any rank, every rank throws the error of the lowest one
// that failed as a UserError with its exit code and its rank in the message.
void fail_together(const CommView& ranks, const std::function<void()>& work);

// The same for work of rank 0 alone.
void fail_together_on_root(const CommView& ranks, const std::function<void()>& work);

}  // namespace trireme::comm
