// GoogleTest under MPI: rank 0 prints, the verdict is the maximum over ranks, no test run is a
// failure, and a watchdog names the rank and the test that hangs. Without a launcher it runs as one
// process (MPI singleton).
#include <gtest/gtest.h>
#include <mpi.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "trireme/base/error.hpp"
#include "trireme/base/isa.hpp"

namespace {

// One line per failure on the ranks that do not print the whole report.
class QuietPrinter : public testing::EmptyTestEventListener {
 public:
  explicit QuietPrinter(int rank) : rank_(rank) {}
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (result.failed()) {
      std::fprintf(stderr, "rank %d: %s:%d: %s\n", rank_, result.file_name(), result.line_number(),
                   result.message());
    }
  }

 private:
  int rank_;
};

// Ends the job when one test takes longer than the limit: a hang in a collective has no other way
// out.
class Watchdog : public testing::EmptyTestEventListener {
 public:
  Watchdog(int rank, int limit_seconds)
      : rank_(rank), limit_(limit_seconds), thread_([this] { watch(); }) {}
  ~Watchdog() override {
    done_ = true;
    thread_.join();
  }
  void OnTestStart(const testing::TestInfo& info) override {
    std::snprintf(name_, sizeof name_, "%s.%s", info.test_suite_name(), info.name());
    started_ = now();
  }
  void OnTestEnd(const testing::TestInfo&) override { started_ = 0; }

 private:
  static long now() {
    using namespace std::chrono;
    return static_cast<long>(
               duration_cast<seconds>(steady_clock::now().time_since_epoch()).count()) +
           1;
  }
  void watch() {
    while (!done_) {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      const long started = started_;
      if (started != 0 && now() - started > limit_) {
        std::fprintf(stderr, "rank %d: %s ran longer than %d s: aborting\n", rank_, name_, limit_);
        MPI_Abort(MPI_COMM_WORLD, 70);
      }
    }
  }
  int rank_;
  int limit_;
  char name_[256] = "";
  std::atomic<long> started_{0};
  std::atomic<bool> done_{false};
  std::thread thread_;
};

int test_limit_seconds() {
  const char* text = std::getenv("TRIREME_TEST_LIMIT");
  return text ? std::atoi(text) : 100;
}

// TRIREME_ISA, before anything computes. What this processor lacks is no failure: the test cannot
// run here.
int cap_instruction_set() {
  try {
    trireme::base::cap_libraries();
    return 0;
  } catch (const trireme::UserError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return error.code() == trireme::ExitCode::unfit_environment ? 125
                                                                : static_cast<int>(error.code());
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (const int code = cap_instruction_set(); code != 0) return code;
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  testing::InitGoogleTest(&argc, argv);
  auto& unit = *testing::UnitTest::GetInstance();
  if (rank != 0) {
    delete unit.listeners().Release(unit.listeners().default_result_printer());
    unit.listeners().Append(new QuietPrinter(rank));
  }
  unit.listeners().Append(new Watchdog(rank, test_limit_seconds()));
  int verdict = RUN_ALL_TESTS();
  if (unit.test_to_run_count() == 0) {
    if (rank == 0) std::fprintf(stderr, "no test ran\n");
    verdict = 1;
  }
  int worst = 0;
  MPI_Allreduce(&verdict, &worst, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  MPI_Finalize();
  return worst;
}
