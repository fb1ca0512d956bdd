#include "torch/torch.hpp"

#include "tools/selftest_parts.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "tools/selftest_model.hpp"
#include "tools/selftest_numbers.hpp"
#include "trireme/base/fault_point.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/base/text.hpp"
#include "trireme/checkpoint/reader.hpp"
#include "trireme/checkpoint/writer.hpp"
#include "trireme/kernels/device_type.hpp"
#include "trireme/kernels/token_log_probs.hpp"
#include "trireme/weightsync/sync.hpp"

namespace trireme::tools::selftest {
namespace {

// The lowest rank's problem, on every rank.
std::string of_any(const comm::CommView& world, const std::string& problem) {
  const std::vector<std::string> all = world.all_gather(problem);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].empty()) return base::text("rank ", rank, ": ", all[rank]);
  }
  return "";
}

std::string sums(const comm::CommView& world, std::vector<float>& values) {
  // Whole numbers: every order of adding them gives the same.
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>((world.rank() + 1) * static_cast<int>(i % 8));
  world.all_reduce(values.data(), std::ssize(values), comm::DType::f32, comm::Op::sum);
  const int64_t ranks = world.size(), total = ranks * (ranks + 1) / 2;
  for (size_t i = 0; i < values.size(); ++i) {
    const auto wanted = static_cast<float>(total * static_cast<int64_t>(i % 8));
    if (values[i] != wanted)
      return base::text("element ", i, " of a sum is ", values[i], " instead of ", wanted);
  }
  return "";
}

std::string copies(const comm::CommView& world) {
  const int rank = world.rank(), ranks = world.size();
  const auto word_of = [](int from, int to) { return base::text("from ", from, " to ", to); };
  if (world.broadcast(word_of(rank, ranks - 1), ranks - 1) != word_of(ranks - 1, ranks - 1))
    return "a broadcast did not bring what the last rank sent";
  const auto all = world.all_gather(word_of(rank, 0));
  for (int r = 0; r < ranks; ++r) {
    if (all[static_cast<size_t>(r)] != word_of(r, 0))
      return base::text("rank ", r, "'s part of a gathered list is ", all[static_cast<size_t>(r)]);
  }
  std::vector<std::string> to;
  for (int r = 0; r < ranks; ++r) to.push_back(word_of(rank, r));
  const auto from = world.all_to_all(to);
  for (int r = 0; r < ranks; ++r) {
    if (from[static_cast<size_t>(r)] != word_of(r, rank))
      return base::text("what rank ", r, " sent here arrived as ", from[static_cast<size_t>(r)]);
  }
  return "";
}

std::vector<std::vector<int>> singles(int ranks) {
  std::vector<std::vector<int>> out;
  for (int r = 0; r < ranks; ++r) out.push_back({r});
  return out;
}

std::vector<int> all_of(int ranks) {
  std::vector<int> out(static_cast<size_t>(ranks));
  std::iota(out.begin(), out.end(), 0);
  return out;
}

// The mean of -log p over all sequences' next tokens, this rank's share of it.
at::Tensor share_of_loss(const model::PackedBatch& batch, const at::Tensor& hidden,
                         const at::Tensor& head) {
  std::vector<int64_t> rows;
  for (size_t s = 0; s + 1 < batch.cu_seqlens.size(); ++s) {
    for (int64_t t = batch.cu_seqlens[s]; t + 1 < batch.cu_seqlens[s + 1]; ++t) rows.push_back(t);
  }
  const at::Tensor index = at::tensor(rows, at::kLong).to(hidden.device());
  const auto out = kernels::token_log_probs(hidden.index_select(0, index), head,
                                            batch.ids.index_select(0, index.add(1)), 1.0,
                                            kernels::Entropy::skip);
  at::Tensor loss = out.log_probs.sum().div(-static_cast<double>(targets()));
  if (base::nan_wanted("loss")) loss = loss.mul(std::numeric_limits<double>::quiet_NaN());
  return loss;
}

// Rounding errors of four steps: on CPUs 4e-7 in fp32 and 0.03 in bf16.
double tolerance(config::DType type) { return type == config::DType::f32 ? 1e-4 : 6e-2; }

at::Tensor state_at(float* values, int64_t elements, at::Device device) {
  return at::from_blob(values, {elements}, at::TensorOptions(device).dtype(at::kFloat));
}

}  // namespace

Finding collectives(const comm::CommView& world) {
  std::vector<float> values(1 << 20);
  std::string problem = sums(world, values);  // also sets up connections
  const base::Stopwatch watch;
  const std::string again = sums(world, values);
  const double gigabytes = 4e-9 * static_cast<double>(values.size());
  const double figure = gigabytes / watch.seconds();
  if (problem.empty()) problem = again;
  const std::string copied = copies(world);
  if (problem.empty()) problem = copied;
  return {of_any(world, problem), figure, "GB/s"};
}

Model::Model(const comm::Roles& roles, at::Device device, config::DType type)
    : roles_(roles),
      device_(device),
      type_(type),
      model_(tiny_model(), roles.world, std::nullopt, device,
             zero::ShardedModelOptions{.name = "selftest", .compute = type}) {
  model_.load([&](size_t parameter, const base::Block& block, float* out) {
    initial_rows(model_.spec(), parameter, block, out);
  });
}

Finding Model::weight_sync() {
  const model::ModelSpec& spec = model_.spec();
  const int ranks = roles_.world.size();
  const weightsync::Members members{{all_of(ranks)}, singles(ranks), roles_.topology.node_of};
  weightsync::SyncOptions options;
  options.device = !kernels::on_host(device_);
  options.delta = weightsync::DeltaScope::off;  // one sync
  options.plan.element_bytes = config::bytes_per_element(type_);
  weightsync::WeightSync sync(roles_.world, base::ShardLayout::by_rows(spec.tensors(), ranks),
                              model::tensor_parallel_layout(spec, 1), members, options);
  const at::ScalarType scalar = type_ == config::DType::f32 ? at::kFloat : at::kBFloat16;
  weightsync::Sources sources;
  std::vector<at::Tensor> replica;
  std::vector<void*> targets;
  for (size_t p = 0; p < spec.parameters.size(); ++p) {
    sources.data.push_back(model_.compute_slice(p).address());
    replica.push_back(
        at::zeros({spec.parameters[p].spec.elements()}, at::TensorOptions(device_).dtype(scalar)));
    targets.push_back(replica.back().data_ptr());
  }
  const weightsync::SyncCounters counters = sync.run(1, sources, targets);
  if (base::nan_wanted("generator"))
    replica.front().fill_(std::numeric_limits<double>::quiet_NaN());
  std::string problem = sync.differences(sources, targets);
  std::string here;
  for (size_t p = 0; here.empty() && p < spec.parameters.size(); ++p) {
    const base::TensorSpec& tensor = spec.parameters[p].spec;
    at::Tensor wanted = at::empty({tensor.elements()}, at::kFloat);
    initial_rows(spec, p, {0, tensor.rows(), 0, tensor.columns()}, wanted.data_ptr<float>());
    if (!at::equal(replica[p].to(at::kCPU), wanted.to(scalar)))
      here = base::text("its replica of ", tensor.name, " differs from the weights");
  }
  here = of_any(roles_.world, here);
  if (problem.empty()) problem = here;
  const double bytes =
      static_cast<double>(roles_.world.sum(counters.bytes_local + counters.bytes_received));
  return {problem, 1e-9 * bytes / std::max(1e-9, roles_.world.max(counters.seconds)), "GB/s"};
}

double Model::loss_and_gradients() {
  std::vector<std::vector<int32_t>> mine;
  for (int64_t s = roles_.world.rank(); s < sequences; s += roles_.world.size())
    mine.push_back(sequence(s));
  const std::vector<std::span<const int32_t>> parts(mine.begin(), mine.end());
  const model::PackedBatch batch = model::pack(parts, device_);
  double loss = 0;
  model_.forward_backward(batch, [&](const at::Tensor& hidden, const at::Tensor& head) {
    at::Tensor value = share_of_loss(batch, hidden, head);
    loss += value.detach().to(at::kCPU).item<double>();
    return value;
  });
  return roles_.world.sum(loss);
}

Finding Model::optimizer_steps() {
  Finding finding{"", 0, "largest relative error"};
  for (size_t step = 0; step < losses.size(); ++step) {
    const double loss = loss_and_gradients();
    const zero::AdamWOptions options{
        .lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .max_norm = 1};
    const double norm = model_.step(options).grad_norm;
    const auto compare = [&](const char* what, double value, double wanted) {
      const double error = std::abs(value - wanted) / wanted;
      if (!(finding.figure >= error)) finding.figure = error;  // also NaN
      if (finding.problem.empty() && !(error <= tolerance(type_)))
        finding.problem = base::text("the ", what, " of step ", step + 1, " is ", value,
                                     ", PyTorch has ", wanted);
    };
    compare("loss", loss, losses[step]);
    compare("gradient norm", norm, gradient_norms[step]);
  }
  finding.problem = of_any(roles_.world, finding.problem);
  return finding;
}

Finding Model::checkpoint(const std::filesystem::path& folder) {
  const at::Device state = model_.state_device();
  checkpoint::Content content;
  std::vector<at::Tensor> saved, loaded;
  std::vector<checkpoint::ReadRequest> requests;
  for (size_t p = 0; p < model_.spec().parameters.size(); ++p) {
    const base::TensorSpec& tensor = model_.spec().parameters[p].spec;
    const base::Block block = model_.own(p);
    const std::pair<const char*, base::Placed<float>> kinds[] = {{"/weight/", model_.master(p)},
                                                                 {"/moment1/", model_.moment1(p)},
                                                                 {"/moment2/", model_.moment2(p)}};
    for (const auto& [kind, values] : kinds) {
      const int64_t elements = values ? block.elements() : 0;
      const base::Block part = values ? block : base::Block{};
      saved.push_back(elements > 0
                          ? state_at(values.address(), elements, state).to(at::kCPU).clone()
                          : at::empty({0}, at::kFloat));
      loaded.push_back(at::zeros({elements}, at::kFloat));
      const std::string path = kind + tensor.name;
      content.datasets.push_back(
          {path, tensor.shape, comm::DType::f32, part, saved.back().data_ptr()});
      requests.push_back({path, tensor.shape, comm::DType::f32, part, loaded.back().data_ptr()});
    }
  }
  content.state = R"({"selftest": true})";
  const checkpoint::SaveReport report = checkpoint::save(roles_.world, folder, 1, content);
  checkpoint::Reader reader(roles_.world, report.folder);
  reader.read(requests);
  reader.verify();
  std::string problem;
  for (size_t i = 0; problem.empty() && i < saved.size(); ++i) {
    if (std::memcmp(saved[i].data_ptr(), loaded[i].data_ptr(), saved[i].nbytes()) != 0)
      problem = base::text(requests[i].path, " was read back with other values");
  }
  return {of_any(roles_.world, problem),
          1e-6 * static_cast<double>(report.bytes) / std::max(1e-9, report.seconds), "MB/s"};
}

}  // namespace trireme::tools::selftest
