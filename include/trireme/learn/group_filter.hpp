// Dynamic filtering in one iteration: which groups of samples are learned from, how many prompts
// are drawn for those that are missing, and what is left over for the next iteration. Groups of
// earlier draws come first.
//
// An iteration draws while it has less than a batch, and at most 1 + `ahead` draws of a batch each
// are under way at a time: with those in front of it, a group that is drawn in iteration i is among
// the first ahead + 2 batches, and is learned from in iteration i + ahead + 1 at the latest.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/base/samples.hpp"
#include "trireme/comm/comm.hpp"
#include "trireme/config/options.hpp"
#include "trireme/report/iteration_metrics.hpp"

namespace trireme::learn {

// What it counts, on every rank alike.
struct FilterState {
  double share_before =
      1;  // of the prompts that were looked at before this iteration, the informative ones
  int64_t drawn = 0;  // prompts of this iteration's draws
  int64_t draws = 0;
  int64_t seen = 0;         // prompts that were looked at in this iteration
  int64_t informative = 0;  // of them
  int64_t complaints = 0;
  bool operator==(const FilterState&) const = default;
};

// Draws that were begun, in this iteration or before, and are not looked at yet.
struct DrawsUnderWay {
  int64_t draws = 0;
  int64_t prompts = 0;
};

class GroupFilter {
 public:
  // `surplus`: this rank's part of what is found already, scored. `options` must outlive it.
  // Collective over world.
  GroupFilter(const config::Options& options, const comm::CommView& world, const Samples& surplus,
              const FilterState& state);

  // Prompts to draw now, so many that this iteration's batch and `ahead` more are expected to be
  // full then; 0: none of it is missing, or the iteration is done, also since the run learns from
  // what there is (algo.dynamic_filtering_shortage, which may also throw UserError(bad_data)). The
  // same on every rank.
  int64_t next_draw(const DrawsUnderWay& under_way = {}, int64_t ahead = 0);
  // The place of that draw's first prompt among those of this iteration. Where draws are under way
  // when the run stops they begin at multiples of a batch, by which they are told apart.
  int64_t next_ordinal() const;
  void begun(int64_t prompts);
  // Whether this iteration learns from what is found.
  bool done() const;
  // This rank's part of what the oldest draw under way, of so many prompts, gave, scored.
  // Collective over world.
  void add(const Samples& samples, int64_t prompts);

  struct Result {
    Samples batch, surplus;  // this rank's part; in no order
    FilterState next;        // for the next iteration
    int64_t skipped = 0;     // prompts
  };
  // Tells `metrics` how much was drawn for it.
  Result finish(report::IterationMetrics& metrics) const;
  // To go on from, in this iteration.
  const Samples& found() const { return samples_; }
  const FilterState& state() const { return state_; }

 private:
  int64_t missing() const;
  bool makes_do() const;
  // Of prompts looked at in this iteration and before; what came before counts as one batch.
  double informative_share() const;
  // What there is of the batch, for a warning or an error.
  std::string shortage() const;

  const config::Options& options_;
  const comm::CommView world_;
  FilterState state_;
  std::vector<uint64_t> groups_;  // that have something to teach, ascending
  Samples samples_;               // this rank's part of them
};

}  // namespace trireme::learn
