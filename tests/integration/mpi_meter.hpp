// Counts the bytes that this process hands to MPI: all data-moving calls of the program go through
// wrappers linked over the library's (the profiling interface of the MPI standard, chapter 15).
// Shared windows are memory and are not seen.
#pragma once

#include <cstdint>

namespace trireme::test {

// Since the start: payload of sends, and this rank's contribution to collectives.
int64_t bytes_given_to_mpi();

}  // namespace trireme::test
