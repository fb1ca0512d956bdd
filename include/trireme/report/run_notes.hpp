// What the numbers of a run say that a person should know, in sentences.
#pragma once

#include <string>
#include <vector>

#include "trireme/report/run_history.hpp"

namespace trireme::report {

struct RunNote {
  enum class Weight { advice, warning };
  Weight weight = Weight::advice;
  std::string what;    // "The reward rises, the evaluation does not."
  std::string advice;  // what to look at or to change
};

// The worst first. Thresholds are in run_notes.cpp, and in docs/user/watching.md.
std::vector<RunNote> notes_on(const RunHistory& run);

}  // namespace trireme::report
