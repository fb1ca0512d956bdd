#include "trireme/comm/session.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <functional>
#include <future>
#include <list>
#include <string_view>
#include <thread>
#include <utility>

#include "comm/mpi_support.hpp"
#include "comm/shard_exchange_parts.hpp"
#include "trireme/base/log.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/job/last_word.hpp"

namespace trireme::comm {
namespace {

std::string host_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

// Sets a variable that nobody has set, for MPI's start only: child processes find what was there
// before.
class ForTheStart {
 public:
  ForTheStart(const char* name, const char* value)
      : name_(std::getenv(name) == nullptr ? name : nullptr) {
    if (name_ != nullptr) setenv(name_, value, 0);
  }
  ForTheStart(const ForTheStart&) = delete;
  ~ForTheStart() {
    if (name_ != nullptr) unsetenv(name_);
  }

 private:
  const char* name_;
};

void start_mpi(bool alone, int& provided) {
  const ForTheStart isolated(
      "OMPI_MCA_ess_singleton_isolated",
      "1");  // a process alone starts a daemon in Open MPI 4, which we need for nothing
  std::list<ForTheStart> variables;
  if (alone) {
    // Open MPI 4 gives all processes that are alone on a node the same folder, which whoever leaves
    // removes under those that start.
    variables.emplace_back("OMPI_MCA_orte_create_session_dirs", "0");
    variables.emplace_back("OMPI_MCA_pml", "ob1");  // looking for networks takes 0.4 s
    variables.emplace_back("OMPI_MCA_btl", "self");
  }
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
}

// Whether it is done within that time; else the request stays open, and the caller ends the job.
bool completes(MPI_Request request, double seconds) {
  const base::Stopwatch watch;
  do {
    int done = 0;
    if (MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) return false;
    if (done) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  } while (watch.seconds() < seconds);
  return false;
}

}  // namespace

Session::Session() {
  facts_.launch = job::read_launch(job::process_environment);
  // Where ranks fill the cores, a rank that waits must let others run; Open MPI finds out by itself
  // only when it was told how many slots there are.
  if (const char* local = std::getenv("OMPI_COMM_WORLD_LOCAL_SIZE")) {
    if (std::atoi(local) >= static_cast<int>(std::thread::hardware_concurrency()))
      setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
  }
  int provided = MPI_THREAD_SINGLE;
  int running = 0;
  check_mpi(MPI_Initialized(&running), "MPI_Initialized");
  started_here_ = !running;
  if (running) {
    check_mpi(MPI_Query_thread(&provided), "MPI_Query_thread");
  } else {
    start_mpi(facts_.launch.launcher.empty(), provided);
  }
  check_mpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  check_mpi(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");

  int size = 1;
  check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
  const int announced = std::max(facts_.launch.size, facts_.launch.local_size);  // 0: nobody says
  if (announced > 1 && size == 1) {
    if (started_here_) MPI_Finalize();
    throw UserError(
        ExitCode::unfit_environment,
        base::text(
            "the launcher started ", announced, " processes but each of them is alone in MPI",
            " (launcher and program use different MPI libraries): start Trireme with the mpirun or",
            " srun --mpi plugin of the MPI that it was built with (trireme --config names it)"));
  }
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> version{};
  int length = 0;
  MPI_Get_library_version(version.data(), &length);
  const std::string_view text(version.data(), static_cast<size_t>(length));
  facts_.library = text.substr(0, text.find_first_of(",\n"));
  facts_.launched = announced > 0;
  facts_.thread_multiple = provided == MPI_THREAD_MULTIPLE;
  facts_.host = host_name();

  MPI_Comm world = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &world), "MPI_Comm_dup");
  check_mpi(MPI_Comm_set_errhandler(world, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  world_.view_.state_ = std::make_shared<CommView::State>(world, "world", false);
  check_mpi(MPI_Comm_rank(world, &world_.view_.rank_), "MPI_Comm_rank");
  world_.view_.size_ = size;
  failures_ = Comm::duplicate(world_.view_, "failures");
}

Session::~Session() {
  failures_ = Comm{};
  MPI_Comm handle = world_.view_.state_->handle;
  world_ = Comm{};
  MPI_Comm_free(&handle);
  if (started_here_) MPI_Finalize();
}

int Session::fail(int exit_code, const std::string& message) const {
  constexpr double patience_seconds = 2;
  if (world().size() == 1 || all_failed_alike(exit_code, patience_seconds)) {
    if (world().rank() == 0) {
      log::error(message);
      job::repeat_after_launcher("error: " + message);
      job::record_verdict(exit_code);
    }
    leave_together(patience_seconds);
    if (device_support().call_left_behind) abort_job(exit_code);
    return exit_code;
  }
  const std::string words = base::text("rank ", world().rank(), " (", facts().host, "): ", message);
  log::error(words);
  job::repeat_after_launcher("error: " + words);
  abort_job(exit_code);
}

bool Session::all_failed_alike(int exit_code, double seconds) const {
  std::array<int, 2> codes{exit_code, -exit_code};  // one maximum gives both ends
  MPI_Request request = MPI_REQUEST_NULL;
  const auto comm = static_cast<MPI_Comm>(failures_->native());
  if (MPI_Iallreduce(MPI_IN_PLACE, codes.data(), 2, MPI_INT, MPI_MAX, comm, &request) !=
      MPI_SUCCESS)
    return false;
  return completes(request, seconds) && codes[0] == exit_code && -codes[1] == exit_code;
}

void Session::leave_together(double seconds) const {
  MPI_Request request = MPI_REQUEST_NULL;
  if (MPI_Ibarrier(static_cast<MPI_Comm>(failures_->native()), &request) == MPI_SUCCESS)
    completes(request, seconds);
}

namespace {

void verdict_and_abort(int exit_code) {
  job::record_verdict(exit_code);
  log::close();
  int initialized = 0;
  int finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (initialized && !finalized) MPI_Abort(MPI_COMM_WORLD, exit_code);
}

}  // namespace

// A job may end because its file system, its log or MPI hangs: whatever takes longer than the
// patience is left out.
void abort_job(const std::function<int()>& decide, int otherwise) {
  constexpr auto patience = std::chrono::seconds(2);
  static std::atomic<int> code;
  code = otherwise;
  try {
    std::promise<void> ended;
    const auto done = ended.get_future();
    std::thread([decide, ended = std::move(ended)]() mutable {
      code = decide();
      verdict_and_abort(code);
      ended.set_value();
    }).detach();
    done.wait_for(patience);
  } catch (const std::exception&) {  // no memory for a thread
    job::record_verdict(otherwise);
  }
  _exit(code);
}

void abort_job(int exit_code) {
  abort_job([exit_code] { return exit_code; }, exit_code);
}

}  // namespace trireme::comm
