// Dynamic filtering in one iteration: which groups of samples are learned from, how many prompts are drawn for those that are missing, and what is
// left over for the next iteration. Groups of earlier iterations come first.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/base/samples.hpp"
#include "trireme/comm/comm.hpp"
#include "trireme/config/options.hpp"
#include "trireme/report/iteration_metrics.hpp"

namespace trireme::learn {

class GroupFilter {
 public:
  // `surplus`: this rank's part of what the iteration before had left over, scored; `share_before`: of the prompts that were drawn until then, the
  // informative ones. `options` must outlive it. Collective over world.
  GroupFilter(const config::Options& options, const comm::CommView& world, const Samples& surplus, double share_before);

  // Prompts to draw now, so many that the batch is expected to be full then; 0: nothing is missing, or the run learns from what there is
  // (algo.dynamic_filtering_shortage, which may also throw UserError(bad_data)). The same on every rank.
  int64_t next_draw();
  // Prompts drawn so far.
  int64_t drawn() const { return drawn_; }
  // This rank's part of what the last draw of so many prompts gave, scored. Collective over world.
  void add(const Samples& samples, int64_t prompts);

  struct Result {
    Samples batch, surplus;        // this rank's part; in no order
    double informative_share = 1;  // for the next iteration's
    int64_t skipped = 0;           // prompts
  };
  // Tells `metrics` how much was drawn for it.
  Result finish(report::IterationMetrics& metrics) const;

 private:
  int64_t missing() const;
  // Of prompts drawn in this iteration and before; what came before counts as one batch.
  double informative_share() const;
  // What there is of the batch, for a warning or an error.
  std::string shortage() const;

  const config::Options& options_;
  const comm::CommView world_;
  double share_before_;           // of prompts drawn before, the informative ones
  std::vector<uint64_t> groups_;  // that have something to teach, ascending
  Samples samples_;              // this rank's part of them
  int64_t drawn_ = 0;            // prompts
  int64_t informative_ = 0;      // of them
  int64_t complaints_ = 0;
};

}  // namespace trireme::learn
