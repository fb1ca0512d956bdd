// The program: parse, start MPI where the command needs it, run, and turn errors into one message
// and an exit code.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <string>
#include <thread>

#include "cli/arguments.hpp"
#include "cli/variant.hpp"
#include "trireme/base/allocation.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/heap.hpp"
#include "trireme/base/isa.hpp"
#include "trireme/base/log.hpp"
#include "trireme/base/text.hpp"
#include "trireme/driver/commands.hpp"
#include "trireme/job/facts.hpp"
#include "trireme/job/last_word.hpp"
#include "trireme/kernels/tensor_memory.hpp"
#include "trireme/trace/region.hpp"

namespace {

using trireme::ExitCode;
using trireme::UserError;

int to_int(ExitCode code) { return static_cast<int>(code); }

// An error as its message and code, whatever threw it.
struct Failure {
  int code;
  std::string message;
};
Failure describe_current() {
  try {
    throw;
  } catch (const UserError& error) {
    return {to_int(error.code()), error.what()};
  } catch (const std::exception& error) {
    if (const auto failed = trireme::base::failed_allocation(error)) {
      return {to_int(ExitCode::out_of_memory),
              trireme::base::describe(*failed, trireme::trace::where_it_failed())};
    }
    if (const auto code = trireme::base::file_error_code(error))
      return {to_int(*code), error.what()};
    const std::string what = error.what();
    return {to_int(ExitCode::internal), what.substr(0, what.find("\nException raised from"))};
  } catch (...) { return {to_int(ExitCode::internal), "an exception of an unknown kind"}; }
}

// Before MPI nobody can ask the others: rank 0 alone says what all ranks see alike. A launcher ends
// a job when its first process leaves with an error, before it has passed on what another one
// wrote; so the silent ranks stay a moment, until they are ended. Whoever was not saw something
// that rank 0 did not (a file that is missing on its node only): the first rank of each node says
// so.
void say_before_mpi(const std::string& message) {
  const trireme::job::LaunchFacts launch =
      trireme::job::read_launch(trireme::job::process_environment);
  if (launch.rank <= 0) {
    trireme::log::error(message);
    return trireme::job::repeat_after_launcher("error: " + message);
  }
  std::this_thread::sleep_for(std::chrono::seconds(3));
  if (launch.local_rank <= 0)
    trireme::log::error(trireme::base::text("rank ", launch.rank, ": ", message));
}

int run_in_job(const trireme::cli::Invocation& invocation) {
  trireme::driver::before_mpi();
  const trireme::comm::Session session;
  try {
    const int code = to_int(invocation.action(&session));
    if (session.world().rank() == 0) trireme::job::record_verdict(code);
    session.world()
        .barrier();  // nothing is left to lose when the launcher sees the first exit code
    return code;
  } catch (...) {
    const Failure failure = describe_current();
    return session.fail(failure.code, failure.message);
  }
}

// The deck's instruction set, within the cap of TRIREME_ISA: before the first tensor, since
// libraries read their caps once.
void choose_isa(const trireme::cli::Invocation& invocation) {
  using namespace trireme::base;
  if (!invocation.isa) return;
  use_isa(*invocation.isa <= processor_isa() ? std::min(*invocation.isa, best_isa())
                                             : *invocation.isa);
  cap_libraries();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    trireme::base::cap_libraries();
    const auto invocation = trireme::cli::parse(argc, argv);
    if (!invocation.action) return 0;
    choose_isa(invocation);
    trireme::cli::enter_variant(invocation.device, argv);
    trireme::base::keep_freed_memory();
    trireme::base::bound_product_caches();
    trireme::kernels::use_block_cache();
    if (invocation.needs == trireme::cli::Needs::mpi) return run_in_job(invocation);
    return to_int(invocation.action(nullptr));
  } catch (...) {
    const Failure failure = describe_current();
    say_before_mpi(failure.message);
    trireme::job::record_verdict(failure.code);  // by every rank: no one waits for another here
    return failure.code;
  }
}
