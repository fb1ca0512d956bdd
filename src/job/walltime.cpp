#include "trireme/job/walltime.hpp"

#include <unistd.h>

#include <algorithm>
#include <ctime>

#include "trireme/base/stopwatch.hpp"
#include "trireme/job/process_stat.hpp"

namespace trireme::job {
namespace {

constexpr double phase_factor = 1.3;
constexpr double save_factor = 1.5;

}  // namespace

double process_age() {
  const auto ticks = stat_field("/proc/self/stat", stat_start_ticks);
  timespec now{};
  if (!ticks || clock_gettime(CLOCK_BOOTTIME, &now) != 0) return 0;
  const double started = static_cast<double>(*ticks) / static_cast<double>(sysconf(_SC_CLK_TCK));
  return std::max(
      0.0, static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec) - started);
}

double leaving_margin(double seconds_left, double start_seconds) {
  return std::clamp(0.1 * seconds_left, 5.0, 30.0) + std::min(start_seconds, 60.0);
}

Walltime::Walltime(std::optional<double> seconds_left) {
  if (!seconds_left) return;
  deadline_ = base::monotonic_seconds() + *seconds_left;
  margin_ = leaving_margin(*seconds_left, 0);
}

Walltime::Walltime(double seconds_left, double margin_seconds)
    : deadline_(base::monotonic_seconds() + seconds_left), margin_(margin_seconds) {}

void Walltime::phase_took(double seconds, double evaluation_seconds) {
  longest_plain_ = std::max(longest_plain_, seconds - evaluation_seconds);
  longest_evaluation_ = std::max(longest_evaluation_, evaluation_seconds);
}

void Walltime::save_took(double seconds) { saves_[saves_seen_++ % saves_.size()] = seconds; }
void Walltime::closing_took(double seconds) {
  longest_closing_ = std::max(longest_closing_, seconds);
}

std::optional<double> Walltime::remaining() const {
  if (!deadline_) return std::nullopt;
  return *deadline_ - base::monotonic_seconds();
}

std::optional<double> Walltime::save_seconds() const {
  if (saves_seen_ == 0) return std::nullopt;
  return *std::max_element(saves_.begin(), saves_.begin() + static_cast<std::ptrdiff_t>(std::min(
                                                                saves_seen_, saves_.size())));
}

// The first evaluation is reckoned to take as long as an iteration.
double Walltime::evaluation(bool evaluates) const {
  if (!evaluates) return 0;
  return longest_evaluation_ > 0 ? longest_evaluation_ : longest_plain_;
}

std::optional<double> Walltime::latest_stop(double stretch, bool save_in_progress) const {
  if (!deadline_) return std::nullopt;
  const double save = save_seconds().value_or(longest_plain_);
  return *deadline_ - phase_factor * (stretch + longest_closing_) -
         save_factor * save * (save_in_progress ? 2 : 1) - margin_;
}

double Walltime::needed(const NextIteration& next) const {
  const double phase = longest_plain_ + evaluation(next.evaluates);
  const double save = save_seconds().value_or(longest_plain_);
  return phase_factor * (phase + longest_closing_) +
         save_factor * save * (next.save_in_progress ? 2 : 1) + margin_;
}

bool Walltime::must_stop(const NextIteration& next) const {
  const auto left = remaining();
  return left && *left < needed(next);
}

bool Walltime::wants_measurement(double iterations_until_save) const {
  const auto left = remaining();
  if (!left || saves_seen_ > 0 || must_stop()) return false;
  return iterations_until_save * longest_plain_ > 0.5 * *left;
}

WalltimeLimit choose_limit(double deck_seconds, double age,
                           std::optional<double> scheduler_seconds_left) {
  const double deck_left = deck_seconds - age;
  if (deck_seconds > 0 && !(scheduler_seconds_left && *scheduler_seconds_left < deck_left))
    return {deck_left, "run.walltime"};
  if (scheduler_seconds_left) {
    return {scheduler_seconds_left, deck_seconds > 0
                                        ? "the scheduler, which ends it before run.walltime"
                                        : "the scheduler"};
  }
  return {};
}

}  // namespace trireme::job
