// Memory of judges on a reward rank.
#pragma once

#include <cstdint>

#include "trireme/config/reward_sources.hpp"
#include "trireme/plan/job.hpp"
#include "trireme/plan/ledger.hpp"

namespace trireme::plan {

// Votes of a judge on an answer, and the tokens of a vote: half of the longest text.
struct Votes {
  double number = 0, length = 0;
};
Votes votes_on_answer(const config::Options& options, const config::JudgeModel& judge);

// Weights, KV pages and a step of each model that judges.
void add_judges(Ledger& ledger, const Job& job, int64_t logit_bytes);

}  // namespace trireme::plan
