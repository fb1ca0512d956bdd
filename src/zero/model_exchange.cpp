#include "torch/torch.hpp"

#include "zero/model_exchange.hpp"

#include <functional>
#include <utility>

#include "trireme/base/error.hpp"
#include "trireme/kernels/device_type.hpp"
#include "trireme/kernels/parallel.hpp"
#include "zero/shards.hpp"

namespace trireme::zero {
namespace {

comm::ExchangeOptions exchange_options(const ShardedModelOptions& options, at::Device device) {
  comm::ExchangeOptions out;
  out.kind = options.exchange;
  out.node_weights = options.node_weights;
  out.weight_type = comm::dtype_of(options.compute);
  out.reduce_type = comm::dtype_of(options.reduce);
  out.device = !kernels::on_host(device);
  out.rings = options.rings;
  out.parallel_for = [](int64_t count, const std::function<void(int64_t, int64_t)>& body) {
    constexpr int64_t grain_elements = 1 << 15;
    kernels::parallel_for(0, count, grain_elements, body);
  };
  return out;
}

}  // namespace

std::vector<std::optional<size_t>> lent_by(const Lender& lender, const model::ModelSpec& spec) {
  if (lender.spec == nullptr)
    return std::vector<std::optional<size_t>>(spec.parameters.size(), std::nullopt);
  EXPECT(lender.spec->stages.size() == spec.stages.size());
  return model::frozen_alike(spec, *lender.spec);
}

std::shared_ptr<comm::ShardExchange> make_model_exchange(
    const model::ModelSpec& spec, const comm::CommView& shard, const ShardedModelOptions& options,
    at::Device device, Lender lender, const std::vector<std::optional<size_t>>& lent) {
  const auto stages = slot_geometry(spec, shard.size());
  const comm::ExchangeOptions how = exchange_options(options, device);
  if (lender.spec == nullptr) return comm::make_shard_exchange(shard, stages, how);
  const auto of_lender = slot_geometry(*lender.spec, shard.size());
  return comm::make_borrowing_exchange(shard, stages, how,
                                       {std::move(lender.exchange), of_lender, lent});
}

}  // namespace trireme::zero
