#include "trireme/report/progress_lines.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "trireme/base/log.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/base/text.hpp"

namespace trireme::report {
namespace {

constexpr double first_line = 15, longest_gap = 300;  // seconds
constexpr double least_for_rate = 2;                  // seconds of a phase before a rate is told

}  // namespace

std::string to_text(const IterationProgress& progress) {
  std::string out = base::text("iteration ", progress.iteration, "/", progress.iterations, ", ",
                               progress.phase, ": ");
  if (progress.of == 0) return out + base::human_seconds(progress.seconds);
  out += base::text(progress.answers, " of ", progress.of, " answers");
  if (progress.tokens_per_second > 0)
    out += base::text(", ", base::fixed(progress.tokens_per_second, 0), " tok/s");
  if (progress.seconds_left > 0)
    out += base::text(", about ", base::human_seconds(progress.seconds_left), " left");
  return out;
}

ProgressLines::ProgressLines(std::function<base::Written()> written)
    : written_(std::move(written)), thread_([this] { watch(); }) {}

ProgressLines::~ProgressLines() {
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void ProgressLines::begin(const std::string& phase, int64_t iteration, int64_t iterations) {
  const base::Written written = written_();
  const std::lock_guard lock(mutex_);
  const double time = base::monotonic_seconds();
  if (iteration != iteration_) {
    iteration_began_ = time;
    next_ = first_line;
  }
  phase_ = phase;
  iteration_ = iteration;
  iterations_ = iterations;
  phase_began_ = time;
  at_begin_ = written;
}

void ProgressLines::expect(int64_t iteration, int64_t answers) {
  const std::lock_guard lock(mutex_);
  if (std::exchange(of_iteration_, iteration) != iteration) of_ = 0;
  of_ += answers;
  expected_ += answers;
}

IterationProgress ProgressLines::now() const {
  IterationProgress progress{.phase = phase_,
                             .iteration = iteration_,
                             .iterations = iterations_,
                             .seconds = base::monotonic_seconds() - phase_began_};
  if (phase_ != "rollout" || of_iteration_ < iteration_) return progress;
  const base::Written written = written_();
  progress.of = of_;
  progress.answers = std::clamp<int64_t>(of_ - (expected_ - written.answers), 0, of_);
  if (progress.seconds < least_for_rate) return progress;
  progress.tokens_per_second =
      static_cast<double>(written.tokens - at_begin_.tokens) / progress.seconds;
  const int64_t more = written.answers - at_begin_.answers;
  if (more > 0)
    progress.seconds_left =
        progress.seconds * static_cast<double>(of_ - progress.answers) / static_cast<double>(more);
  return progress;
}

void ProgressLines::watch() {
  const bool terminal = ::isatty(STDERR_FILENO) == 1;
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, std::chrono::seconds(1), [this] { return done_; })) {
    if (phase_.empty()) continue;
    const double seconds = base::monotonic_seconds() - iteration_began_;
    const bool due = seconds >= next_;
    if (!terminal && !due) continue;
    if (due) next_ = seconds + std::min(seconds, longest_gap);
    const std::string line = to_text(now());
    lock.unlock();  // the log may wait for a disk
    if (terminal) {
      log::live(line);
    } else {
      log::info(line);
    }
    lock.lock();
  }
}

}  // namespace trireme::report
