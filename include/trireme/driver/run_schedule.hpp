// When a run evaluates and when it is done, by the deck. Pure rules: every rank, and everything
// that plans ahead, asks here.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "trireme/config/options.hpp"
#include "trireme/driver/run_state.hpp"
#include "trireme/job/signals.hpp"

namespace trireme::driver {

// Whether the held-out data is due after `iteration` of so many: every eval.steps, and at the end.
bool evaluation_due(const config::EvalOptions& eval, int64_t iteration, int64_t iterations);

// The figure of an evaluation that ckpt.best_metric names; nullopt where it names none. Throws
// InternalError where the evaluation has no such figure.
std::optional<double> judged_value(const config::CkptOptions& ckpt,
                                   std::span<const std::pair<std::string, double>> evaluation);

// The checkpoint of `iteration`, if `value` of ckpt.best_metric is better than any before; a value
// that is not finite is not.
std::optional<BestCheckpoint> better_checkpoint(const config::CkptOptions& ckpt,
                                                const BestCheckpoint& best, int64_t iteration,
                                                double value);

// Why the run ends before its last iteration (ckpt.target, ckpt.patience), in words; nullopt: it
// goes on. Depends on what a checkpoint holds alone, so a start after the end finds it again.
std::optional<std::string> early_end(const config::CkptOptions& ckpt,
                                     const config::EvalOptions& eval, const RunState& state);

// Actions after an iteration.
struct AfterIteration {
  job::StopReason leave = job::StopReason::none;  // saves and leaves with it
  bool save = false;
  bool serves_request = false;  // the save was asked for by a signal or a file
  bool operator==(const AfterIteration&) const = default;
};
// `goes_on`: another iteration would begin; else the end of the run saves. `agreed`: the most
// urgent wish of all ranks. `due`: a save is, by itself.
AfterIteration after_iteration(bool goes_on, job::StopReason agreed, bool due);

}  // namespace trireme::driver
