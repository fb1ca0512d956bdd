#include "torch/torch.hpp"

#include "zero/optimizer.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "trireme/base/checked.hpp"
#include "trireme/base/error.hpp"
#include "trireme/comm/device_copies.hpp"
#include "trireme/kernels/adamw.hpp"
#include "trireme/kernels/device_kernels.hpp"
#include "trireme/kernels/device_type.hpp"
#include "trireme/plan/model_bytes.hpp"

namespace trireme::zero {
namespace {

// Of parameter p.
kernels::AdamWStep step_of(const ShardUpdate& update, size_t p) {
  const AdamWOptions& options = update.options;
  kernels::AdamWStep step;
  step.lr = options.lr;
  step.beta1 = options.beta1;
  step.beta2 = options.beta2;
  step.eps = options.eps;
  step.weight_decay = decays(update.map.layout().tensors()[p].name) ? options.weight_decay : 0;
  step.clip_factor = update.clip_factor;
  step.step = update.state.steps + 1;
  return step;
}

kernels::AdamWShard shard_of(const ShardUpdate& update, size_t p) {
  const OptimizerState& state = update.state;
  const ShardMap& map = update.map;
  kernels::AdamWShard shard;
  shard.master = map.data(state.master, p);
  shard.moment1 = map.data(state.moment1, p);
  shard.moment2 = map.data(state.moment2, p);
  shard.gradient = map.data(state.gradient, p);
  shard.elements = map.own(p).elements();
  std::byte* slice = update.exchange.own_slice(p);
  if (update.compute == at::kFloat) {
    shard.compute_fp32 = reinterpret_cast<float*>(slice);
  } else {
    shard.compute_bf16 = reinterpret_cast<uint16_t*>(slice);
  }
  return shard;
}

int64_t update_on_host(const ShardUpdate& update) {
  OptimizerState& state = update.state;
  const ShardMap& map = update.map;
  int64_t changed = 0;
  std::vector<uint64_t> step_bits;  // bits of a parameter that this step changed
  for (const size_t p : map.trained()) {
    state.before_change(p);
    kernels::AdamWShard shard = shard_of(update, p);
    if (!state.changed.empty()) {
      step_bits.resize(static_cast<size_t>((shard.elements + 63) / 64));
      shard.changed = step_bits.data();
    }
    changed += kernels::adamw(shard, step_of(update, p));
    // Steps since the last sync add up.
    if (shard.changed) {
      const auto sum = state.changed.begin() + map.offset(p) / 64;
      std::transform(step_bits.begin(), step_bits.end(), sum, sum, std::bit_or<>());
    }
  }
  return changed;
}

// One pass over the shard by our own kernel.
int64_t update_by_kernel(const ShardUpdate& update, const kernels::DeviceKernels& device) {
  const ShardMap& map = update.map;
  std::vector<int64_t> first_team{0};  // of each trained parameter among all counts
  for (const size_t p : map.trained())
    first_team.push_back(first_team.back() + device.adamw_teams(map.own(p).elements()));
  at::Tensor changed =
      at::zeros({first_team.back()}, update.state.master.options().dtype(at::kInt));
  for (size_t i = 0; i < map.trained().size(); ++i) {
    const size_t p = map.trained()[i];
    device.adamw(shard_of(update, p), step_of(update, p),
                 changed.mutable_data_ptr<int32_t>() + first_team[i]);
  }
  return changed.sum().item<int64_t>();
}

// Consecutive values of one parameter, places in the flat shards.
struct Piece {
  size_t parameter;
  int64_t first;   // within the parameter
  int64_t offset;  // within the shard
  int64_t count;
};

// This rank's values of parameters with, or without, weight decay, in groups of at most `most`
// values. Every piece begins at a multiple of `most` in its parameter: LibTorch's CPU kernel rounds
// a row's last values otherwise than those of whole vectors.
std::vector<std::vector<Piece>> pieces(const ShardMap& map, bool decay, int64_t most) {
  std::vector<std::vector<Piece>> groups;
  int64_t left = 0;  // of the last group
  for (const size_t p : map.trained()) {
    const int64_t elements = map.own(p).elements();
    if (decays(map.layout().tensors()[p].name) != decay) continue;
    for (int64_t first = 0, count = 0; first < elements; first += count) {
      count = std::min(elements - first, most);
      if (count > left) {
        groups.emplace_back();
        left = most;
      }
      groups.back().push_back({p, first, map.offset(p) + first, count});
      left -= count;
    }
  }
  return groups;
}

struct GroupState {
  std::vector<at::Tensor> masters, moments1, moments2;  // by piece
};

GroupState in_place(const OptimizerState& state, const std::vector<Piece>& group) {
  GroupState out;
  for (const Piece& piece : group) {
    out.masters.push_back(state.master.narrow(0, piece.offset, piece.count));
    out.moments1.push_back(state.moment1.narrow(0, piece.offset, piece.count));
    out.moments2.push_back(state.moment2.narrow(0, piece.offset, piece.count));
  }
  return out;
}

// State that lies on the host, a group at a time on the device: while one is updated and goes back,
// the next one comes.
class VisitingState {
 public:
  VisitingState(OptimizerState& state, const std::vector<std::vector<Piece>>& groups)
      : state_(state) {
    int64_t most = 0;
    for (const auto& group : groups) {
      int64_t elements = 0;
      for (const Piece& piece : group) elements += room(piece);
      most = std::max(most, elements);
    }
    const int64_t halves = std::min<int64_t>(2, std::ssize(groups));
    memory_ = at::empty({halves, 3, most}, state.gradient.options());
    copies_ = comm::make_two_way_copies();
  }
  // `number`: of the group in their order.
  GroupState bring(const std::vector<Piece>& group, int64_t number) {
    for (const Piece& piece : group) state_.before_change(piece.parameter);
    GroupState out;
    std::vector<Copy> copies;
    for_each_array(group, number, out, [&](const at::Tensor& host, const at::Tensor& device) {
      copies.push_back(copy(device, host));
    });
    copies_->to_device(half(number), copies);
    return out;
  }
  void take_back(const std::vector<Piece>& group, int64_t number) {
    GroupState same;
    std::vector<Copy> copies;
    for_each_array(group, number, same, [&](const at::Tensor& host, const at::Tensor& device) {
      copies.push_back(copy(host, device));
    });
    copies_->to_host(half(number), copies);
  }
  void finish() { copies_->finish(); }

 private:
  using Copy = comm::TwoWayCopies::Copy;
  static int64_t room(const Piece& piece) {  // so that vectors of the kernels do not cross pieces
    constexpr int64_t align = 64;
    return base::round_up(piece.count, align);
  }
  static comm::TwoWayCopies::Half half(int64_t number) {
    return number % 2 == 0 ? comm::TwoWayCopies::Half::first : comm::TwoWayCopies::Half::second;
  }
  static Copy copy(const at::Tensor& to, const at::Tensor& from) {
    return {static_cast<std::byte*>(to.mutable_data_ptr()),
            static_cast<const std::byte*>(from.const_data_ptr()),
            static_cast<int64_t>(from.nbytes())};
  }
  template <class Visit>
  void for_each_array(const std::vector<Piece>& group, int64_t number, GroupState& out,
                      const Visit& visit) const {
    const at::Tensor arrays = memory_.select(0, number % 2);
    int64_t at = 0;
    for (const Piece& piece : group) {
      int64_t array = 0;
      for (const auto& [flat, list] : {std::pair{&state_.master, &out.masters},
                                       {&state_.moment1, &out.moments1},
                                       {&state_.moment2, &out.moments2}}) {
        list->push_back(arrays.select(0, array++).narrow(0, at, piece.count));
        visit(flat->narrow(0, piece.offset, piece.count), list->back());
      }
      at += room(piece);
    }
  }

  OptimizerState& state_;
  at::Tensor memory_;                           // [halves, arrays, elements]
  std::unique_ptr<comm::TwoWayCopies> copies_;  // over before the memory goes
};

// AdamW and the compute type. Adds up the changed values.
void update_group(const ShardUpdate& update, const GroupState& group_state,
                  const std::vector<Piece>& group, bool decay, at::Tensor& changed) {
  const AdamWOptions& options = update.options;
  const at::Tensor& gradient = update.state.gradient;
  auto [masters, moments1, moments2] = group_state;
  std::vector<at::Tensor> gradients;
  for (const Piece& piece : group)
    gradients.push_back(gradient.narrow(0, piece.offset, piece.count));
  const at::Tensor count =
      at::full({}, static_cast<double>(update.state.steps + 1), gradient.options());
  const std::vector<at::Tensor> steps(group.size(), count);
  at::_fused_adamw_(masters, gradients, moments1, moments2, {}, steps, options.lr, options.beta1,
                    options.beta2, decay ? options.weight_decay : 0, options.eps, false, false);
  for (size_t i = 0; i < group.size(); ++i) {
    const Piece& piece = group[i];
    std::byte* place = update.exchange.own_slice(piece.parameter) +
                       piece.first * static_cast<int64_t>(c10::elementSize(update.compute));
    at::Tensor slice =
        at::from_blob(place, {piece.count}, masters[i].options().dtype(update.compute));
    const at::Tensor rounded = masters[i].to(update.compute);
    changed.add_(rounded.ne(slice).sum());
    slice.copy_(rounded);
  }
}

}  // namespace

int64_t update_shard(const ShardUpdate& update) {
  const at::NoGradGuard no_gradients;
  if (kernels::on_host(update.state.gradient.device())) return update_on_host(update);
  const bool offloaded = !update.state.host.empty();
  const auto* device = kernels::device_kernels();
  if (device && !offloaded) return update_by_kernel(update, *device);
  return update_by_operations(
      update, offloaded ? plan::offload_piece : std::numeric_limits<int64_t>::max());
}

int64_t update_by_operations(const ShardUpdate& update, int64_t piece) {
  const at::NoGradGuard no_gradients;
  OptimizerState& state = update.state;
  const ShardMap& map = update.map;
  if (update.clip_factor != 1) state.gradient.mul_(update.clip_factor);
  at::Tensor changed = at::zeros({}, state.gradient.options().dtype(at::kLong));
  auto groups = pieces(map, true, piece);
  const int64_t decayed = std::ssize(groups);
  std::ranges::move(pieces(map, false, piece), std::back_inserter(groups));
  std::optional<VisitingState> visiting;
  if (!state.host.empty() && !groups.empty()) visiting.emplace(state, groups);
  for (int64_t i = 0; i < std::ssize(groups); ++i) {
    const auto& group = groups[static_cast<size_t>(i)];
    update_group(update, visiting ? visiting->bring(group, i) : in_place(state, group), group,
                 i < decayed, changed);
    if (visiting) visiting->take_back(group, i);
  }
  if (visiting) visiting->finish();
  return changed.item<int64_t>();
}

double squared_gradients(const OptimizerState& state) {
  if (kernels::on_host(state.gradient.device()))
    return kernels::squared_norm(state.gradient.data_ptr<float>(), state.gradient.numel());
  return squared_norm_in_chunks(state.gradient);
}

double squared_norm_in_chunks(const at::Tensor& values) {
  const at::NoGradGuard no_gradients;
  at::Tensor sum = at::zeros({}, values.options().dtype(at::kDouble));
  for (int64_t first = 0; first < values.numel(); first += plan::norm_chunk) {
    // LibTorch converts its whole argument to the type in which it adds.
    const at::Tensor chunk =
        values.narrow(0, first, std::min(plan::norm_chunk, values.numel() - first));
    sum.add_(at::linalg_vector_norm(chunk, 2, std::nullopt, false, at::kDouble).square_());
  }
  return sum.item<double>();
}

void write_compute(const float* values, int64_t elements, at::ScalarType compute, at::Device device,
                   void* slice) {
  if (elements == 0) return;
  if (!kernels::on_host(device)) {
    const at::NoGradGuard no_gradients;
    const at::Tensor host = at::from_blob(const_cast<float*>(values), {elements},
                                          at::TensorOptions().dtype(at::kFloat));
    at::from_blob(slice, {elements}, at::TensorOptions().dtype(compute).device(device)).copy_(host);
  } else if (compute == at::kFloat) {
    std::memcpy(slice, values, static_cast<size_t>(elements) * sizeof(float));
  } else {
    kernels::cast_to_bf16(values, static_cast<uint16_t*>(slice), elements);
  }
}

void update_average(OptimizerState& state) {
  if (!state.average.defined()) return;
  if (kernels::on_host(state.average.device())) {
    kernels::moving_average(state.average.data_ptr<float>(), state.master.data_ptr<float>(),
                            state.average_beta, state.average.numel());
    return;
  }
  const at::NoGradGuard no_gradients;
  state.average.mul_(state.average_beta).add_(state.master, 1 - state.average_beta);
}

}  // namespace trireme::zero
