// MPI handles and the one place where an MPI error becomes ours. Private to comm.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "comm/ledger.hpp"
#include "trireme/base/error.hpp"
#include "trireme/comm/comm.hpp"

namespace trireme::comm {

// Throws UserError(internal) that names the call when `code` is an error.
void check_mpi(int code, const char* call);
#define TRIREME_MPI(call) ::trireme::comm::check_mpi((call), #call)

MPI_Datatype to_mpi(DType type);
MPI_Op to_mpi(Op op, DType type);  // bf16 sums have an operation of our own

// The largest count handed to one MPI call: counts are int there, and messages beyond 1 GiB gain
// nothing. Tests make it small.
inline int64_t max_count = int64_t{1} << 30;

// Freed with its last owner or view, unless MPI has ended.
struct CommView::State {
  State(MPI_Comm comm, std::string label, bool frees)
      : handle(comm), name(std::move(label)), owned(frees) {}
  State(const State&) = delete;
  ~State();

  MPI_Comm handle;
  std::string name;
  bool owned;
  Ledger ledger;
};

}  // namespace trireme::comm
