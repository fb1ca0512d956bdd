#include "comm/shared_counter.hpp"

#include "comm/mpi_support.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/trace/region.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace trireme::comm {

namespace {

void poll_messages(const CommView& comm) {
  int flag = 0;
  TRIREME_MPI(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, static_cast<MPI_Comm>(comm.native()), &flag,
                         MPI_STATUS_IGNORE));
}

void pause_core() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

}  // namespace

double wait_for_counter(const CommView& comm, const SharedCounter& counter, uint64_t wanted) {
  constexpr int spins_before_yield = 64;
  for (int i = 0; i < spins_before_yield; ++i) {
    if (counter.reached(wanted)) return 0;
  }
  const trace::Region region{"wait for neighbours", trace::no_argument, trace::Category::wait};
  const base::Stopwatch watch;
  wait_for([&] { return counter.reached(wanted); }, [&] { poll_messages(comm); });
  return watch.seconds();
}

void wait_for_message(const CommView& comm, const SharedCounter& counter, uint64_t wanted) {
  constexpr int spins_before_yield = 500;
  for (int i = 0; i < spins_before_yield; ++i) {
    if (counter.reached(wanted)) return;
    pause_core();
  }
  constexpr double patience = 5e-3;  // seconds; a sleep takes a tenth of a millisecond
  for (const base::Stopwatch watch; watch.seconds() < patience; sched_yield()) {
    if (counter.reached(wanted)) return;
  }
  wait_for([&] { return counter.reached(wanted); }, [&] { poll_messages(comm); });
}

}  // namespace trireme::comm
