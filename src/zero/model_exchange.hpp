// The exchange of a model, which may borrow parameters from another model's. Private to zero.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <vector>

#include "trireme/comm/shard_exchange.hpp"
#include "trireme/model/spec.hpp"
#include "trireme/zero/sharded_model.hpp"

namespace trireme::zero {

// ShardedModelOptions::base as its exchange and list of parameters; null: there is none.
struct Lender {
  const model::ModelSpec* spec = nullptr;
  std::shared_ptr<comm::ShardExchange> exchange;
};

// [parameters of `spec`] the number that a parameter of the lender's has there; none: the model's
// own.
std::vector<std::optional<size_t>> lent_by(const Lender& lender, const model::ModelSpec& spec);

// Collective over `shard`.
std::shared_ptr<comm::ShardExchange> make_model_exchange(
    const model::ModelSpec& spec, const comm::CommView& shard, const ShardedModelOptions& options,
    at::Device device, Lender lender, const std::vector<std::optional<size_t>>& lent);

}  // namespace trireme::zero
