#include "trireme/checkpoint/save_schedule.hpp"

#include <algorithm>
#include <cmath>

#include "trireme/base/text.hpp"

namespace trireme::checkpoint {

int64_t SaveSchedule::until_due(int64_t iteration) const {
  const int64_t every = options_.interval.iterations;
  const int64_t regular = every > 0 ? (every - iteration % every) % every : never;
  return retry_at_ < 0 ? regular : std::min(regular, std::max<int64_t>(0, retry_at_ - iteration));
}

bool SaveSchedule::time_is_due(const SavesSoFar& saves) const {
  const config::SaveInterval& interval = options_.interval;
  if (interval.seconds > 0) return since_save_.seconds() >= interval.seconds;
  if (!interval.automatic) return false;
  if (saves.committed == 0) return !saves.at_work;  // the first one tells what a save costs
  return since_save_.seconds() >= best_interval(saves.last_seconds);
}

double SaveSchedule::best_interval(double last_seconds) const {
  const double between_failures = 3600 / (options_.failure_rate * static_cast<double>(ranks_));
  const double cost = std::max(options_.background ? cost_ : last_seconds, 0.001);
  return std::max(std::sqrt(2 * cost * between_failures), last_seconds);
}

bool SaveSchedule::may_pass(ExitCode code) {
  return code == ExitCode::io_error || code == ExitCode::permission ||
         code == ExitCode::input_missing || code == ExitCode::out_of_memory;
}

void SaveSchedule::committed() { failed_in_a_row_ = 0; }

std::string SaveSchedule::failed(const UserError& error, int64_t saved, int64_t iteration,
                                 int64_t committed) {
  ++failures_;
  ++failed_in_a_row_;
  if (options_.max_failures > 0 && failed_in_a_row_ >= options_.max_failures) {
    throw UserError(
        error.code(),
        base::text("the checkpoint of iteration ", saved, " failed, as ", failed_in_a_row_,
                   " in a row, which is ckpt.max_failures (", error.what(), ")"));
  }
  // At once when it is first heard of, then after 1, 3, 7, ... iterations, and not later than the
  // next one would be due.
  const int64_t pause = (int64_t{1} << std::min<int64_t>(failed_in_a_row_ - 1, 6)) - 1;
  retry_at_ = std::max(iteration + pause, saved + 1);
  return base::text("THE CHECKPOINT OF ITERATION ", saved, " FAILED (", error.what(),
                    "): the run goes on, the last good one is ",
                    committed < 0 ? std::string("none") : base::text("of iteration ", committed),
                    "; next try after iteration ", retry_at_, " (", failures_, " failed so far)");
}

std::string SaveSchedule::changed_interval(double last_seconds) {
  const double now = best_interval(last_seconds);
  if (!options_.interval.automatic || (now < 1.5 * announced_ && announced_ < 1.5 * now)) return {};
  announced_ = now;
  return base::text("ckpt.interval = \"auto\": a checkpoint every ", base::human_seconds(now),
                    " (one holds training up for ", base::human_seconds(cost_), "; ", ranks_,
                    " ranks that fail ", options_.failure_rate, " times an hour each)");
}

}  // namespace trireme::checkpoint
