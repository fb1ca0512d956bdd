// The forms of the [fault] keys, parsed. Faults are deterministic: a rank and a step, a named point, or the n-th call.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "trireme/config/options.hpp"

namespace trireme::config {

// "rank:step" or "rank:step:what"; rank "*" is every rank (-1).
struct FaultAt {
  int rank = 0;
  int64_t step = 0;
  std::string what;  // exit_at: the code; nan_at: loss | grad | weight; flip_at: tensor name
  bool hits(int this_rank, int64_t this_step) const { return (rank < 0 || rank == this_rank) && step == this_step; }
};

// delay = "rank:phase:ms"
struct FaultDelay {
  int rank = 0;
  std::string phase;
  double milliseconds = 0;
};

// io_fail = "op:n:errno", op one of open, write, fsync, rename, close, mkdir; the n-th call (from 1) fails
struct FaultIo {
  std::string operation;
  int64_t call = 0;
  int error = 0;
};

// `key` is the key's name without "fault."; nullopt for an empty text. UserError(configuration) when the form is wrong.
std::optional<FaultAt> parse_fault_at(std::string_view key, std::string_view text);
std::optional<FaultDelay> parse_fault_delay(std::string_view text);
std::optional<FaultIo> parse_fault_io(std::string_view text);

// Parses all of them: throws at the first that is malformed.
void check_faults(const FaultOptions& options);

}  // namespace trireme::config
