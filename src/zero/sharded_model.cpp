#include "torch/torch.hpp"

#include "trireme/zero/sharded_model.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "trireme/base/error.hpp"
#include "trireme/base/fault_point.hpp"
#include "trireme/base/log.hpp"
#include "trireme/base/progress.hpp"
#include "trireme/kernels/adamw.hpp"
#include "trireme/kernels/device_type.hpp"
#include "trireme/kernels/parallel.hpp"
#include "trireme/kernels/scalar_type.hpp"
#include "trireme/trace/region.hpp"
#include "zero/gradient_sums.hpp"
#include "zero/model_exchange.hpp"
#include "zero/optimizer.hpp"
#include "zero/replica_sums.hpp"
#include "zero/shards.hpp"
#include "zero/stage_loop.hpp"

namespace trireme::zero {
namespace {

int64_t bytes_of(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<int64_t>(tensor.nbytes()) : 0;
}

int64_t recomputed_blocks(const ShardedModelOptions& options, const config::ModelShape& shape) {
  VALIDATE(options.recompute >= -1 && options.recompute <= shape.layers, ExitCode::configuration,
           "train.recompute = ", options.recompute, ", but the model has ", shape.layers,
           " blocks: give 0 .. ", shape.layers, ", or -1 for all");
  return options.recompute < 0 ? shape.layers : options.recompute;
}

}  // namespace

struct ShardedModel::Impl {
  Impl(model::ModelSpec model_spec, const comm::CommView& shard_comm,
       const std::optional<comm::CommView>& replica_comm, at::Device where,
       const ShardedModelOptions& wanted)
      : spec(std::move(model_spec)),
        shard(shard_comm),
        replicas(replica_comm),
        device(where),
        options(wanted),
        compute(kernels::scalar_type(wanted.compute)),
        map(spec, shard_comm.size(), shard_comm.rank()),
        lent(lent_by(lender(wanted.base), spec)),
        exchange(make_model_exchange(spec, shard_comm, wanted, where, lender(wanted.base), lent)),
        loop(spec, *exchange, sums, *options.strategy,
             {shard_comm.size(), where, compute, recomputed_blocks(wanted, spec.shape)}) {
    VALIDATE(kernels::on_host(device) || !options.track_changes, ExitCode::configuration,
             "changed weights are tracked on CPUs only: set weightsync.delta = false");
    draws.seed = wanted.seed;
    draws.rank = (replicas ? replicas->rank() * shard.size() : 0) + shard.rank();
    if (trainable()) {
      state.gradient = map.allocate(device);
      if (replicas && replicas->size() > 1) {
        replica_sums.emplace(*replicas, options.reduce, state.gradient, map.completed_by(spec),
                             *exchange);
      }
      if (options.reduce_once) {
        sums = GradientSums(comm::gradient_slots(slot_geometry(spec, shard.size())), device);
      }
      for (at::Tensor* flat : {&state.master, &state.moment1, &state.moment2})
        *flat = allocate_state();
      if (options.track_changes) state.changed.assign(static_cast<size_t>(map.elements() / 64), 0);
    }
    if (shard.rank() == 0 && (!replicas || replicas->rank() == 0)) {
      log::detail(base::text(
          options.name, ": sharded over ", shard.size(), shard.size() == 1 ? " rank" : " ranks",
          " by ", exchange->kind(), ", ",
          base::human_bytes(static_cast<double>(exchange->counters().weight_memory)), " of ",
          config::to_string(options.compute), " weights on a rank",
          options.base ? ", the others are the " + options.base->impl_->options.name + "'s" : "",
          describe_frozen(), describe_sums()));
    }
  }

  static Lender lender(const ShardedModel* base) {
    return base ? Lender{&base->impl_->spec, base->impl_->exchange} : Lender{};
  }
  base::Memory model_memory() const {
    return kernels::on_host(device) ? base::Memory::host : base::Memory::device;
  }
  Values state_values(const at::Tensor& flat, size_t parameter) const {
    return {map.data(flat, parameter), options.offload ? base::Memory::host : model_memory()};
  }

  at::Tensor allocate_state() {
    if (!options.offload) return map.allocate(device);
    auto& memory = state.host.emplace_back(
        map.elements() * int64_t{sizeof(float)}, "the optimizer's state",
        "use more nodes, or train.optimizer_offload = false where GPUs have room");
    return at::from_blob(memory.data(), {map.elements()}, at::kFloat);
  }
  std::string describe_frozen() const {  // of a model that is trained in part
    const int64_t all = spec.elements(), trained = spec.trainable_elements();
    if (trained == 0 || trained == all) return "";
    return base::text(", ", trained, " of ", all, " weights are trained, the others are frozen");
  }
  bool rounds_sums() const {
    return options.reduce != config::DType::f32 && (shard.size() > 1 || replica_sums);
  }
  std::string describe_sums() const {  // where they are not fp32, with each micro-batch
    const bool rounded = trainable() && rounds_sums();
    if (!rounded && !sums.wanted()) return "";
    return base::text(", gradients summed",
                      rounded ? base::text(" in ", config::to_string(options.reduce)) : "",
                      sums.wanted() ? " once a step" : "");
  }
  bool trainable() const { return spec.is_trainable(); }
  void require_trainable(const char* what) const {
    if (!trainable()) throw InternalError(base::text(what, " of the frozen ", options.name));
  }
  // Of a stage's trainable parameters; also where this rank has the padding of a slice alone.
  std::vector<float*> gradient_shards(int stage) const {
    std::vector<float*> pointers;
    for (const size_t p : spec.stages[static_cast<size_t>(stage)].parameters) {
      if (map.trainable(p)) pointers.push_back(state.gradient.data_ptr<float>() + map.offset(p));
    }
    return pointers;
  }
  void finish_reduction(int stage, Reduce when) {
    exchange->finish_reduce(stage, gradient_shards(stage));
    if (replica_sums && when == Reduce::now) replica_sums->add_stage(stage);
  }
  // For tests of what comes of it: this rank's first number is none.
  static void spoil(at::Tensor& flat) {
    if (flat.numel() > 0) flat.narrow(0, 0, 1).fill_(std::numeric_limits<float>::quiet_NaN());
  }
  // The first parameter of this rank with a number in `flat` that is not finite; the count of
  // parameters: none.
  int64_t first_not_finite(const at::Tensor& flat) const;
  // After a norm that is not finite. Collective over the shard.
  std::string what_is_not_finite() const;
  // From host memory: load() of both kinds of model.
  void load_parameter(size_t p, const ReadRows& read, std::vector<float>& rows);

  model::ModelSpec spec;
  comm::CommView shard;
  std::optional<comm::CommView> replicas;
  at::Device device;
  ShardedModelOptions options;
  at::ScalarType compute;
  ShardMap map;
  std::vector<std::optional<size_t>> lent;  // by parameter: its number in options.base
  std::shared_ptr<comm::ShardExchange> exchange;
  GradientSums sums;
  StageLoop loop;
  OptimizerState state;
  model::DropoutDraws draws;
  std::optional<ReplicaSums> replica_sums;  // where there are replicas
};

ShardedModel::ShardedModel(model::ModelSpec spec, const comm::CommView& shard,
                           const std::optional<comm::CommView>& replicas, at::Device device,
                           const ShardedModelOptions& options)
    : impl_(std::make_unique<Impl>(std::move(spec), shard, replicas, device, options)) {}
ShardedModel::~ShardedModel() = default;
ShardedModel::ShardedModel(ShardedModel&&) noexcept = default;

int64_t ShardedModel::Impl::first_not_finite(const at::Tensor& flat) const {
  for (const size_t p : map.trained()) {
    const int64_t elements = map.own(p).elements();
    if (!at::isfinite(flat.narrow(0, map.offset(p), elements)).all().item<bool>())
      return static_cast<int64_t>(p);
  }
  return static_cast<int64_t>(map.parameters());
}

std::string ShardedModel::Impl::what_is_not_finite() const {
  const auto none = static_cast<int64_t>(map.parameters());
  std::string out = "its gradient norm is not finite";
  for (const auto& [flat, what] :
       {std::pair{&state.master, "weight"}, std::pair{&state.gradient, "gradient"}}) {
    const auto found = shard.gather_values(first_not_finite(*flat));
    const auto first = std::min_element(found.begin(), found.end());
    if (*first == none) continue;
    out += base::text(
        ", first in the ", what, " of ", spec.parameters[static_cast<size_t>(*first)].spec.name,
        " on rank ", first - found.begin(), " of ", shard.name(), " (",
        std::count_if(found.begin(), found.end(), [&](int64_t p) { return p < none; }), " of ",
        found.size(), " ranks have some)");
  }
  return out;
}

void ShardedModel::Impl::load_parameter(size_t p, const ReadRows& read, std::vector<float>& rows) {
  const base::Block own = map.own(p);
  base::tick();
  if (own.empty() || lent[p]) return;
  const bool trained = map.trainable(p),
             in_place = trained && kernels::on_host(state.master.device());
  float* values = in_place ? map.data(state.master, p) : nullptr;
  if (!values) {
    rows.resize(static_cast<size_t>(own.elements()));
    values = rows.data();
  }
  read(p, own, values);
  write_compute(values, own.elements(), compute, device, exchange->own_slice(p));
  if (!trained || in_place) return;
  const at::NoGradGuard no_gradients;
  state.master.narrow(0, map.offset(p), own.elements())
      .copy_(at::from_blob(values, {own.elements()}, at::TensorOptions().dtype(at::kFloat)));
}

void ShardedModel::load(const ReadRows& read) {
  trace::Region region{"load weights", trace::no_argument, trace::Category::io};
  std::vector<float> rows;
  impl_->exchange->begin_update();
  for (size_t p = 0; p < impl_->map.parameters(); ++p) impl_->load_parameter(p, read, rows);
  impl_->exchange->end_update();
  auto& state = impl_->state;
  if (!impl_->trainable()) return;
  if (impl_->replica_sums) impl_->replica_sums->forget();
  std::fill(state.changed.begin(), state.changed.end(), ~uint64_t{0});
  for (at::Tensor* flat : {&state.gradient, &state.moment1, &state.moment2}) flat->zero_();
  impl_->sums.forget();
  if (state.average.defined()) state.average.copy_(state.master);
  state.steps = 0;
}

void ShardedModel::refresh() {
  impl_->require_trainable("refresh()");
  std::fill(impl_->state.changed.begin(), impl_->state.changed.end(), ~uint64_t{0});
  impl_->exchange->begin_update();
  for (const size_t p : impl_->map.trained()) {
    const int64_t elements = impl_->map.own(p).elements();
    const at::Tensor host =
        impl_->state.master.narrow(0, impl_->map.offset(p), elements).to(at::kCPU);
    write_compute(host.data_ptr<float>(), elements, impl_->compute, impl_->device,
                  impl_->exchange->own_slice(p));
  }
  impl_->exchange->end_update();
}

void ShardedModel::forward(const model::PackedBatch& batch, const Head& head,
                           model::AdapterUse adapter) {
  impl_->loop.forward(batch, head, adapter);
}

void ShardedModel::visit_whole(const WantsParameter& wanted, const VisitWhole& visit) {
  impl_->loop.visit_whole(wanted, visit);
}

void ShardedModel::forward_backward(const model::PackedBatch& batch, const Loss& loss,
                                    Reduce when) {
  impl_->require_trainable("forward_backward()");
  if (impl_->replica_sums && impl_->replica_sums->begun())
    throw InternalError(base::text("a micro-batch of the ", impl_->options.name,
                                   " after the last one of its step"));
  impl_->draws.step = impl_->state.steps;
  impl_->loop.forward_backward(
      batch, loss, [&](int stage) { impl_->finish_reduction(stage, when); },
      impl_->sums.wanted() ? when : Reduce::now, impl_->draws);
  ++impl_->draws.micro_batch;
}

StepResult ShardedModel::step(const AdamWOptions& options) {
  impl_->require_trainable("step()");
  if (!impl_->sums.empty())
    throw InternalError(base::text("a step of the ", impl_->options.name,
                                   " with gradients that were to go to their owners later"));
  trace::Region region{"optimizer step"};
  auto& state = impl_->state;
  if (impl_->replica_sums) impl_->replica_sums->complete();
  if (base::nan_wanted("grad")) impl_->spoil(state.gradient);
  if (base::nan_wanted("weight")) {
    if (kernels::on_host(state.master.device()) && !impl_->map.trained().empty())
      state.before_change(impl_->map.trained().front());
    impl_->spoil(state.master);
  }
  StepResult result;
  result.grad_norm = std::sqrt(impl_->shard.sum(squared_gradients(state)));
  result.elements = impl_->spec.trainable_elements();
  if (!std::isfinite(result.grad_norm)) {
    result.not_finite = impl_->what_is_not_finite();
    zero_gradients();
    impl_->exchange->begin_update();  // as behind every step no rank holds gathered stages, whoever
                                      // else had some ranks' rings
    impl_->exchange->end_update();
    return result;
  }
  impl_->exchange->begin_update();
  const int64_t changed =
      update_shard({state, impl_->map, *impl_->exchange, impl_->compute, options,
                    kernels::clip_factor(result.grad_norm, options.max_norm)});
  impl_->exchange->end_update();
  ++state.steps;
  update_average(state);
  zero_gradients();
  result.changed_values = impl_->shard.sum(changed);
  result.updated = true;
  return result;
}

void ShardedModel::zero_gradients() {
  impl_->require_trainable("zero_gradients()");
  if (impl_->replica_sums) impl_->replica_sums->forget();
  impl_->state.gradient.zero_();
  impl_->sums.forget();
  impl_->draws.micro_batch = 0;
}

void ShardedModel::before_change(BeforeChange call) {
  impl_->require_trainable("before_change()");
  impl_->state.before_change = std::move(call);
}

void ShardedModel::enable_average(double beta) {
  impl_->require_trainable("enable_average()");
  VALIDATE(beta >= 0 && beta < 1, ExitCode::configuration, "train.ema_beta = ", beta,
           " is not in [0, 1)");
  impl_->state.average = impl_->state.master.clone();
  impl_->state.average_beta = beta;
}

const model::ModelSpec& ShardedModel::spec() const { return impl_->spec; }
base::Block ShardedModel::own(size_t parameter) const { return impl_->map.own(parameter); }
int64_t ShardedModel::largest_stage() const { return impl_->map.largest_stage(impl_->spec); }
using Values = ShardedModel::Values;
Values ShardedModel::master(size_t p) { return impl_->state_values(impl_->state.master, p); }
Values ShardedModel::gradient(size_t p) {
  return {impl_->map.data(impl_->state.gradient, p), impl_->model_memory()};
}
Values ShardedModel::moment1(size_t p) { return impl_->state_values(impl_->state.moment1, p); }
Values ShardedModel::moment2(size_t p) { return impl_->state_values(impl_->state.moment2, p); }
Values ShardedModel::average(size_t p) { return impl_->state_values(impl_->state.average, p); }
base::Placed<const std::byte> ShardedModel::compute_slice(size_t p) {
  return {impl_->exchange->own_slice(p), impl_->model_memory()};
}
int64_t ShardedModel::compute_bytes() const {
  return static_cast<int64_t>(c10::elementSize(impl_->compute));
}
const void* ShardedModel::compute_whole(size_t p) const { return impl_->exchange->whole(p); }
void ShardedModel::clear_changes() {
  std::fill(impl_->state.changed.begin(), impl_->state.changed.end(), 0);
}
const uint64_t* ShardedModel::changed(size_t p) const {
  if (impl_->state.changed.empty() || !impl_->map.trainable(p)) return nullptr;
  return impl_->state.changed.data() + impl_->map.offset(p) / 64;
}
at::Device ShardedModel::state_device() const {
  return impl_->trainable() ? impl_->state.master.device() : impl_->device;
}
int64_t ShardedModel::steps() const { return impl_->state.steps; }
void ShardedModel::set_steps(int64_t steps) { impl_->state.steps = steps; }
const comm::ExchangeCounters& ShardedModel::counters() const { return impl_->exchange->counters(); }
std::string ShardedModel::exchange_kind() const { return impl_->exchange->kind(); }

MemoryUse ShardedModel::memory() const {
  const auto& state = impl_->state;
  MemoryUse use;
  use.master = bytes_of(state.master);
  use.gradients = bytes_of(state.gradient);
  use.moments = bytes_of(state.moment1) + bytes_of(state.moment2);
  use.average = bytes_of(state.average);
  use.changed = static_cast<int64_t>(state.changed.size() * sizeof(uint64_t));
  use.weights = impl_->exchange->counters().weight_memory;
  use.exchange = impl_->exchange->counters().gradient_memory;
  use.sums = impl_->sums.bytes();
  use.activations = impl_->loop.peak_input_bytes();
  return use;
}

}  // namespace trireme::zero
