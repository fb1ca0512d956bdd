// Notes on the numbers of a run that a person should read, in sentences.
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
