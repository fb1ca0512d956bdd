#include "comm/shared_counter.hpp"

#include "comm/mpi_support.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::comm {

double wait_for_counter(const CommView& comm, const SharedCounter& counter, uint64_t wanted) {
  constexpr int kSpins = 64;
  for (int i = 0; i < kSpins; ++i) {
    if (counter.reached(wanted)) return 0;
  }
  const trace::Region region{"wait for neighbours", trace::no_argument, trace::Category::wait};
  const base::Stopwatch watch;
  wait_for([&] { return counter.reached(wanted); },
           [&] {
             int flag = 0;
             TRIREME_MPI(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, static_cast<MPI_Comm>(comm.native()), &flag, MPI_STATUS_IGNORE));
           });
  return watch.seconds();
}

}  // namespace trireme::comm
