// When a run evaluates and when it is done, by the deck. Pure rules: every rank, and everything
// that plans ahead, asks here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "trireme/config/options.hpp"
#include "trireme/driver/progress.hpp"

namespace trireme::driver {

// Whether the held-out data is due after `iteration` of so many: every eval.steps, and at the end.
bool evaluation_due(const config::EvalOptions& eval, int64_t iteration, int64_t iterations);

// The checkpoint of `iteration`, if `value` of ckpt.best_metric is better than any before; a value
// that is not finite is not.
std::optional<BestCheckpoint> better_checkpoint(const config::CkptOptions& ckpt,
                                                const BestCheckpoint& best, int64_t iteration,
                                                double value);

// Why the run ends before its last iteration (ckpt.target, ckpt.patience), in words; nullopt: it
// goes on. Depends on what a checkpoint holds alone, so a start after the end finds it again.
std::optional<std::string> early_end(const config::CkptOptions& ckpt,
                                     const config::EvalOptions& eval, const Progress& progress);

}  // namespace trireme::driver
