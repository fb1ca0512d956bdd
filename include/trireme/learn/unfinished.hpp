// An iteration that a stop interrupted, as a checkpoint stores it: the next start goes on where it
// was left, with the same bits.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "trireme/base/samples.hpp"
#include "trireme/comm/comm.hpp"
#include "trireme/learn/learning.hpp"
#include "trireme/report/iteration_metrics.hpp"

namespace trireme::learn {

// One rank's part of it.
struct UnfinishedPart {
  std::vector<std::pair<std::string, double>>
      metrics;  // of the iteration so far, the same on every rank
  int64_t tokens = 0;
  bool trains = false;  // what follows is a trainer's
  Samples samples;      // with the columns of the experience
  Mismatch mismatch;
  PipelineTotals pipeline;
  UpdateReport update;
  static constexpr auto fields =
      std::tuple{&UnfinishedPart::metrics, &UnfinishedPart::tokens,   &UnfinishedPart::trains,
                 &UnfinishedPart::samples, &UnfinishedPart::mismatch, &UnfinishedPart::pipeline,
                 &UnfinishedPart::update};
};

// `learning` is null on ranks that do not train, and behind the last optimizer step.
std::string to_stored(const report::IterationMetrics& metrics, const Learning* learning);

// The whole of it: samples on rank 0 only, the rest on every rank.
struct Unfinished {
  std::string phase;
  std::vector<std::pair<std::string, double>> metrics;
  int64_t tokens = 0;
  Samples samples;
  std::vector<UnfinishedPart>
      trainers;  // without metrics and samples, in the order of the trainers that saved
};
// `parts`: of all ranks, one behind the other, on rank 0. Throws UserError(bad_data) where they are
// cut short. Collective over world.
Unfinished share_unfinished(const comm::CommView& world, const std::string& phase,
                            std::string_view parts);

// What trainer `rank` of `size` goes on with; the sums over trainers stay what they were when their
// number has changed.
Learning learning_of(const Unfinished& unfinished, Samples samples, int rank, int size);

}  // namespace trireme::learn
