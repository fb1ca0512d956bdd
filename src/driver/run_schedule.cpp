#include "trireme/driver/run_schedule.hpp"

#include <cmath>

#include "trireme/base/error.hpp"
#include "trireme/base/text.hpp"
#include "trireme/config/deck.hpp"

namespace trireme::driver {

bool evaluation_due(const config::EvalOptions& eval, int64_t iteration, int64_t iterations) {
  return eval.steps > 0 && (iteration % eval.steps == 0 || iteration == iterations);
}

std::optional<double> judged_value(const config::CkptOptions& ckpt,
                                   std::span<const std::pair<std::string, double>> evaluation) {
  if (ckpt.best_metric.empty()) return std::nullopt;
  for (const auto& [name, value] : evaluation) {
    if (name == ckpt.best_metric) return value;
  }
  throw InternalError(
      base::text("the evaluation has no ", ckpt.best_metric, ", which ckpt.best_metric names"));
}

std::optional<BestCheckpoint> better_checkpoint(const config::CkptOptions& ckpt,
                                                const BestCheckpoint& best, int64_t iteration,
                                                double value) {
  if (ckpt.best_metric.empty() || !std::isfinite(value)) return std::nullopt;
  const bool better =
      config::smaller_is_better(ckpt.best_metric) ? value < best.value : value > best.value;
  if (best.metric == ckpt.best_metric && !better) return std::nullopt;
  return BestCheckpoint{ckpt.best_metric, iteration, value};
}

std::optional<std::string> early_end(const config::CkptOptions& ckpt,
                                     const config::EvalOptions& eval, const RunState& state) {
  const BestCheckpoint& best = state.best;
  if (best.iteration < 0 || best.metric != ckpt.best_metric || eval.steps <= 0) return std::nullopt;
  const bool small = config::smaller_is_better(ckpt.best_metric);
  if (ckpt.target && (small ? best.value <= *ckpt.target : best.value >= *ckpt.target)) {
    return base::text("the run is done: ", ckpt.best_metric, " is ", best.value,
                      ", which reaches ckpt.target = ", *ckpt.target);
  }
  const int64_t fruitless = (state.iteration - best.iteration) / eval.steps;
  if (ckpt.patience <= 0 || fruitless < ckpt.patience) return std::nullopt;
  return base::text("the run is done: ", fruitless, " evaluations brought no better ",
                    ckpt.best_metric, " than ", best.value, " (ckpt.patience)");
}

AfterIteration after_iteration(bool goes_on, job::StopReason agreed, bool due) {
  if (!goes_on) return {};
  if (agreed > job::StopReason::save_and_go_on) return {.leave = agreed};
  const bool asked = agreed == job::StopReason::save_and_go_on;
  return {.save = asked || due, .serves_request = asked};
}

}  // namespace trireme::driver
