// Sums of gradients over the ranks that have copies of a shard (train.shard_group). On hosts once a
// step. On devices stage by stage beside the step's last backward pass, in the stream of the
// exchange: that of stage i + 1 while stage i is computed. Private to zero.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "trireme/comm/comm.hpp"
#include "trireme/comm/rank_sums.hpp"
#include "trireme/comm/shard_exchange.hpp"
#include "trireme/config/choices.hpp"
#include "zero/shards.hpp"

namespace trireme::zero {

class ReplicaSums {
 public:
  // fp32 `gradient` of the shard, summed in `type`; what has all of its gradients by stage
  // (ShardMap::completed_by()). `exchange` must outlive it. Collective over `replicas`.
  ReplicaSums(const comm::CommView& replicas, config::DType type, at::Tensor gradient,
              std::vector<std::vector<ShardRange>> completed_by, comm::ShardExchange& exchange);

  // After a stage's reduction in the step's last micro-batch. Collective.
  void add_stage(int stage);
  // Some stages have their sums: no gradients may come any more.
  bool begun() const { return begun_; }
  // All that is computed from now on has all sums. Throws InternalError where a device has added up
  // none. Collective.
  void complete();
  // The step is given up, or over.
  void forget();

 private:
  void add(const ShardRange& range);
  void add_on_host(at::Tensor values) const;

  comm::CommView replicas_;
  config::DType type_;
  at::Tensor gradient_;
  std::vector<std::vector<ShardRange>> completed_by_;
  comm::ShardExchange& exchange_;
  std::unique_ptr<comm::RankSums> sums_;  // null: on hosts
  bool begun_ = false;
};

}  // namespace trireme::zero
