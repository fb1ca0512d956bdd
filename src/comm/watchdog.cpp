#include "trireme/comm/watchdog.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <thread>

#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/log.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/comm/session.hpp"

namespace trireme::comm {

struct Watchdog::State {
  int rank = 0;
  double usual_deadline = 0;
  std::filesystem::path folder;
  std::function<std::string()> describe;
  std::function<uint64_t()> activity;
  std::atomic<double> last_beat{0};
  std::atomic<const char*> where{"start"};
  std::atomic<double> deadline{0};
  std::mutex mutex;
  std::condition_variable wake;
  bool done = false;
  std::thread thread;

  void watch();
  void report_and_abort(double silent);
};

void Watchdog::State::watch() {
  std::unique_lock lock(mutex);
  uint64_t seen = 0;
  while (!wake.wait_for(lock, std::chrono::milliseconds(500), [this] { return done; })) {
    if (const uint64_t now = activity ? activity() : 0; now != seen) {
      seen = now;
      last_beat = base::monotonic_seconds();
    }
    const double limit = deadline.load();
    const double silent = base::monotonic_seconds() - last_beat.load();
    if (limit > 0 && silent > limit) report_and_abort(silent);
  }
}

void Watchdog::State::report_and_abort(double silent) {
  const std::string doing = describe ? describe() : std::string{};
  std::array<char, 32> name{};
  std::snprintf(name.data(), name.size(), "rank-%05d.json", rank);
  try {
    std::filesystem::create_directories(folder);
    base::write_file_atomically(folder / name.data(),
                                base::text("{\"rank\":", rank, ",\"where\":\"", where.load(), "\",\"silent_seconds\":",
                                           silent, ",\"doing\":\"", doing, "\"}\n"));
  } catch (const std::exception& error) {
    log::error(base::text("the hang report could not be written: ", error.what()));
  }
  log::error(base::text("rank ", rank, ": no progress for ", base::human_seconds(silent), " in ", where.load(),
                        doing.empty() ? "" : ", inside ", doing,
                        ": a peer is lost or stuck; the hang/ folder of the run says where each rank was. Aborting"));
  abort_job(static_cast<int>(ExitCode::internal));
}

Watchdog::Watchdog(int rank, double deadline_seconds, std::filesystem::path report_folder,
                   std::function<std::string()> describe, std::function<uint64_t()> activity)
    : state_(std::make_unique<State>()) {
  state_->rank = rank;
  state_->usual_deadline = deadline_seconds;
  state_->folder = std::move(report_folder);
  state_->describe = std::move(describe);
  state_->activity = std::move(activity);
  state_->last_beat = base::monotonic_seconds();
  state_->deadline = deadline_seconds;
  state_->thread = std::thread([state = state_.get()] { state->watch(); });
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->done = true;
  }
  state_->wake.notify_all();
  state_->thread.join();
}

void Watchdog::beat(const char* where) {
  state_->where = where;
  state_->last_beat = base::monotonic_seconds();
}

void Watchdog::set_deadline(double seconds) {
  state_->deadline = seconds > 0 ? seconds : state_->usual_deadline;
  state_->last_beat = base::monotonic_seconds();
}

}  // namespace trireme::comm
