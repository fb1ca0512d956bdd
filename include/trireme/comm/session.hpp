// The MPI session of the process: started once in main, finalised in its destructor (collective).
// Everything else receives communicators.
#pragma once

#include <functional>
#include <string>

#include "trireme/comm/comm.hpp"
#include "trireme/job/facts.hpp"
#include "trireme/job/verdict.hpp"

namespace trireme::comm {

struct SessionFacts {
  std::string library;      // e.g. "Open MPI v4.1.4"
  bool launched = false;    // false: a single process without a launcher
  job::LaunchFacts launch;  // read before MPI starts, which sets variables of its own
  bool thread_multiple = false;
  std::string host;
};

class Session {
 public:
  // Starts MPI with MPI_THREAD_MULTIPLE where it is to be had; joins an MPI that runs already (and
  // then leaves its end to whoever started it). Collective over the job. Throws unfit_environment
  // when the launcher started several processes that do not see each other (another MPI's launcher:
  // the "singleton trap").
  Session();
  Session(const Session&) = delete;
  ~Session();

  const CommView& world() const { return world_.view_; }
  const SessionFacts& facts() const { return facts_; }

  // The end of a failed job. An error that every rank meets, within 2 seconds and with the same
  // exit code, is said once and the code returned; one that some ranks meet leaves the others
  // waiting in a collective, so it names the rank and ends the job. The error becomes the verdict.
  int fail(int exit_code, const std::string& message) const;

  // True when every rank comes here with the same exit code within `seconds`; false when some rank
  // does not come (it waits in a collective for ever).
  bool all_failed_alike(int exit_code, double seconds) const;

 private:
  // After that: nobody leaves before all are here, for at most `seconds`. A launcher may end the
  // others when the first one leaves.
  void leave_together(double seconds) const;

  Comm world_;
  Comm failures_;  // for all_failed_alike only
  SessionFacts facts_;
  bool started_here_ = false;
};

// Ends the whole job at once with this exit code, which becomes its verdict (job/verdict.hpp); for
// errors that one rank sees. Does not return; callable from any thread. Verdict, log and MPI_Abort
// get 2 seconds, in a thread of their own; then the process leaves all the same.
[[noreturn]] void abort_job(int exit_code);
// The same with a code that has to be found out first, from files for instance, in the same 2
// seconds; `otherwise` when that takes longer.
[[noreturn]] void abort_job(const std::function<int()>& decide, int otherwise);

}  // namespace trireme::comm
