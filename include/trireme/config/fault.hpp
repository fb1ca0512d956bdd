// The forms of the [fault] keys, parsed. Faults are deterministic: a rank, a named place and the
// n-th pass of it, or the n-th call.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/config/options.hpp"

namespace trireme::config {

// An entry of fault.at, "kind:rank:place:pass[:value]".
struct Fault {
  std::string kind;   // kill | segv | hang | suspend | exit | delay | signal | alloc_fail | io_fail
                      // | nan | skip | open | gate
  int rank = 0;       // -1: every rank
  std::string place;  // base/fault_point.hpp; nan: loss | grad | weight | generator | bucket
  int64_t pass = 1;   // from 1; 0: every one
  double value = 0;   // exit: the code; delay: milliseconds; signal: its number; io_fail: errno
  bool is_for(int this_rank) const { return rank < 0 || rank == this_rank; }
};

// io_fail = "op:n:errno[:rank]", op one of open, write, fsync, rename, close, mkdir; the n-th call
// (from 1) fails
struct FaultIo {
  std::string operation;
  int64_t call = 0;
  int error = 0;
  int rank = -1;  // -1: every rank
};

// UserError(configuration) when the form is wrong.
Fault parse_fault(std::string_view text);
std::vector<Fault> parse_faults(const Strings& texts);
// nullopt for an empty text.
std::optional<FaultIo> parse_fault_io(std::string_view text);

// Parses all of them: throws at the first that is malformed.
void check_faults(const FaultOptions& options);

// Installs the faults of `rank` in this process (base/fault_point.hpp); their gates are files in
// `run_folder`. Call as early as the rank is known. Local.
void install_faults(const FaultOptions& options, const std::string& run_folder, int rank);

}  // namespace trireme::config
