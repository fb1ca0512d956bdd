#include "torch/torch.hpp"

#include "zero/replica_sums.hpp"

#include <algorithm>
#include <utility>

#include "trireme/base/error.hpp"
#include "trireme/kernels/device_type.hpp"
#include "trireme/kernels/scalar_type.hpp"
#include "trireme/plan/model_bytes.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::zero {

ReplicaSums::ReplicaSums(const comm::CommView& replicas, config::DType type, at::Tensor gradient,
                         std::vector<std::vector<ShardRange>> completed_by,
                         comm::ShardExchange& exchange)
    : replicas_(replicas),
      type_(type),
      gradient_(std::move(gradient)),
      completed_by_(std::move(completed_by)),
      exchange_(exchange) {
  if (!kernels::on_host(gradient_.device()))
    sums_ = comm::make_rank_sums(replicas, true, exchange.stream());
}

void ReplicaSums::add_stage(int stage) {
  if (!sums_) return;
  begun_ = true;
  for (const ShardRange& range : completed_by_[static_cast<size_t>(stage)]) add(range);
}

void ReplicaSums::complete() {
  if (!sums_) return add({0, gradient_.numel()});
  if (!begun_) throw InternalError("an optimizer step without the last of its micro-batches");
  exchange_.join();
}

void ReplicaSums::forget() {
  if (std::exchange(begun_, false)) exchange_.join();
}

void ReplicaSums::add(const ShardRange& range) {
  const comm::DType type = comm::dtype_of(type_);
  const int64_t bytes = range.elements * static_cast<int64_t>(comm::size_of(type)),
                before = sums_ ? sums_->counters().host_bytes : 0,
                most = type == comm::DType::f32 ? range.elements : plan::replica_piece;
  for (int64_t done = 0; done < range.elements; done += most) {
    const at::Tensor piece =
        gradient_.narrow(0, range.first + done, std::min(most, range.elements - done));
    if (sums_) {
      sums_->add_up_in(type, piece.mutable_data_ptr<float>(), piece.numel());
    } else {
      add_on_host(piece);
    }
  }
  trace::count("replica_gradient_bytes", bytes);
  trace::count("replica_gradient_host_bytes",
               sums_ ? sums_->counters().host_bytes - before : bytes);
}

void ReplicaSums::add_on_host(at::Tensor values) const {
  const comm::DType type = comm::dtype_of(type_);
  const at::NoGradGuard no_gradients;
  const at::Tensor summed =
      type == comm::DType::f32 ? values : values.to(kernels::scalar_type(type_));
  replicas_.all_reduce(summed.mutable_data_ptr(), summed.numel(), type, comm::Op::sum);
  if (type != comm::DType::f32) values.copy_(summed);
}

}  // namespace trireme::zero
