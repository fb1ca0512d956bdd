// The parts of `trireme selftest`, each by the functions that a run uses.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string>

#include "trireme/comm/roles.hpp"
#include "trireme/config/choices.hpp"
#include "trireme/zero/sharded_model.hpp"

namespace trireme::tools::selftest {

// Result of a part: "" or the problem, the same on every rank, and a figure.
struct Finding {
  std::string problem;
  double figure = 0;
  const char* unit = "";
};

// Sums, copies and exchanges of known numbers over all ranks. Figure: GB/s of a sum of 4 MB.
// Collective.
Finding collectives(const comm::CommView& world);

// A tiny model over all ranks: weights go to a replica on each rank, it takes optimizer steps, its
// state is saved and read.
class Model {
 public:
  // Collective over world.
  Model(const comm::Roles& roles, at::Device device, config::DType type);

  // Trainers' shards -> a replica on each rank, compared with the formula. Figure: GB/s that
  // arrive. Collective; before the steps.
  Finding weight_sync();
  // Losses and gradient norms against PyTorch's. Figure: the largest relative error. Collective.
  Finding optimizer_steps();
  // Weights and moments into `folder` and back. Figure: MB/s of the save. Collective.
  Finding checkpoint(const std::filesystem::path& folder);

 private:
  double loss_and_gradients();

  const comm::Roles& roles_;
  at::Device device_;
  config::DType type_;
  zero::ShardedModel model_;
};

}  // namespace trireme::tools::selftest
