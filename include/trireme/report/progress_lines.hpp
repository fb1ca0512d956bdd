// Shows the progress inside an iteration to people who wait: on a terminal as a line that is
// overwritten each second; elsewhere (in a batch job, or under a launcher that takes the terminal
// away) as a line of the log after 15 s, 30 s, 1 min and so on, at most every 5 min.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "trireme/base/progress.hpp"

namespace trireme::report {

// Where the run stands, as far as a line tells it.
struct IterationProgress {
  std::string phase = {};
  int64_t iteration = 0, iterations = 0;
  double seconds = 0;           // in this phase
  int64_t answers = 0, of = 0;  // written of the iteration's; of 0: nothing is written
  double tokens_per_second = 0;
  double seconds_left = 0;  // of the rollout; 0: not known
};
// "iteration 3/40, rollout: 37 of 256 answers, 210 tok/s, about 6 min 2 s left"
std::string to_text(const IterationProgress& progress);

class ProgressLines {
 public:
  // On the rank that prints. `written` returns the output of all generators since the start; a
  // thread of this object calls it.
  explicit ProgressLines(std::function<base::Written()> written);
  ProgressLines(const ProgressLines&) = delete;
  ~ProgressLines();

  // The main thread begins this phase.
  void begin(const std::string& phase, int64_t iteration, int64_t iterations);
  // So many answers of an iteration are begun.
  void expect(int64_t iteration, int64_t answers);

 private:
  void watch();
  IterationProgress now() const;  // with the mutex

  std::function<base::Written()> written_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  bool done_ = false;
  std::string phase_;
  int64_t iteration_ = 0, iterations_ = 0;
  double phase_began_ = 0, iteration_began_ = 0;
  base::Written at_begin_;  // of the phase
  int64_t expected_ = 0;    // answers since the start
  int64_t of_ = 0, of_iteration_ = 0;
  double next_ = 0;     // line, in seconds of the iteration
  std::thread thread_;  // last
};

}  // namespace trireme::report
