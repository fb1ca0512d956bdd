// What judges hold on a reward rank.
#pragma once

#include <cstdint>

#include "trireme/plan/job.hpp"
#include "trireme/plan/ledger.hpp"

namespace trireme::plan {

// Weights, KV pages and a step of each model that judges.
void add_judges(Ledger& ledger, const Job& job, int64_t logit_bytes);

}  // namespace trireme::plan
