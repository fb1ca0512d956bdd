// Weight sync of the 135M shape in bf16 (269 MB): ours over shared memory and over messages, beside
// the usual way (gather every parameter, broadcast it) over the same MPI, and the time that 2 x the
// bytes take at copy bandwidth.
//   mpirun -n 4 build/release/perf/perf_weightsync --trainers 2 --tp 2 --replicas 1 [--colocated]
//   [--repetitions 7] [--delta 0.01]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "harness/arguments.hpp"
#include "trireme/base/checked.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/base/shard_layout.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/comm/huge_buffer.hpp"
#include "trireme/comm/session.hpp"
#include "trireme/comm/topology.hpp"
#include "trireme/weightsync/sync.hpp"

namespace {

using namespace trireme;

struct Arguments {
  int trainers = 1;
  int tensor_parallel = 1;
  int replicas = 1;
  bool colocated = false;
  int repetitions = 7;
  double delta = 0;  // fraction of elements that change between syncs; 0: no delta row
  int64_t layers = 30;
  int64_t node_bucket = weightsync::PlanOptions{}.node_bucket_bytes;
  bool check = false;
  bool only_messages = false;
  int threads = 1;
};

base::Slicing slice(base::SliceAxis axis, int64_t units, int64_t size, int t) {
  base::Slicing out{axis, {0}};
  for (int r = 0; r < t; ++r)
    out.bounds.push_back(out.bounds.back() + (units / t + (r < units % t ? 1 : 0)) * size);
  return out;
}

struct Shape {
  std::vector<base::TensorSpec> tensors;
  std::vector<base::Slicing> slicing;
};

Shape smollm(int64_t layers, int t) {
  using base::SliceAxis;
  Shape s;
  auto add = [&](const std::string& name, std::vector<int64_t> dims, base::Slicing how) {
    s.tensors.push_back({name, std::move(dims)});
    s.slicing.push_back(std::move(how));
  };
  add("model.embed_tokens.weight", {49152, 576}, slice(SliceAxis::rows, 49152, 1, t));
  for (int64_t l = 0; l < layers; ++l) {
    const std::string p = "model.layers." + std::to_string(l) + ".";
    add(p + "input_layernorm.weight", {576}, {});
    add(p + "self_attn.q_proj.weight", {576, 576}, slice(SliceAxis::rows, 3, 192, t));
    add(p + "self_attn.k_proj.weight", {192, 576}, slice(SliceAxis::rows, 3, 64, t));
    add(p + "self_attn.v_proj.weight", {192, 576}, slice(SliceAxis::rows, 3, 64, t));
    add(p + "self_attn.o_proj.weight", {576, 576}, slice(SliceAxis::columns, 3, 192, t));
    add(p + "post_attention_layernorm.weight", {576}, {});
    add(p + "mlp.gate_proj.weight", {1536, 576}, slice(SliceAxis::rows, 1536, 1, t));
    add(p + "mlp.up_proj.weight", {1536, 576}, slice(SliceAxis::rows, 1536, 1, t));
    add(p + "mlp.down_proj.weight", {576, 1536}, slice(SliceAxis::columns, 1536, 1, t));
  }
  add("model.norm.weight", {576}, {});
  return s;
}

// This rank's tensors: a trainer's in memory that it shares with the others, as the program has
// them, a generator's in its own.
struct Store {
  std::vector<std::span<uint16_t>> values;
  Store(const base::ShardLayout& layout, int index, const comm::Comm* sharing) {
    if (index < 0) return;
    std::vector<int64_t> offsets{0};
    for (size_t i = 0; i < layout.tensors().size(); ++i)
      offsets.push_back(offsets.back() + base::round_up<int64_t>(elements(layout, i, index), 32));
    const auto bytes = offsets.back() * static_cast<int64_t>(sizeof(uint16_t));
    if (sharing) {
      window_ = comm::SharedWindow(sharing->view(), bytes, "weights");
    } else {
      own_ = comm::HugeBuffer(bytes, comm::FirstTouch::now, "weights", "use fewer layers");
    }
    auto* const memory =
        reinterpret_cast<uint16_t*>(sharing ? window_.part(sharing->view().rank()) : own_.data());
    for (size_t i = 0; i < layout.tensors().size(); ++i) {
      values.emplace_back(memory + offsets[i], static_cast<size_t>(elements(layout, i, index)));
      std::ranges::fill(values.back(), static_cast<uint16_t>(index + 1));
    }
  }
  std::vector<const void*> read() const {
    std::vector<const void*> out;
    for (const auto& v : values) out.push_back(v.data());
    return out;
  }
  std::vector<void*> write() {
    std::vector<void*> out;
    for (auto& v : values) out.push_back(v.data());
    return out;
  }

 private:
  static int64_t elements(const base::ShardLayout& layout, size_t tensor, int index) {
    return std::max<int64_t>(0, layout.block(tensor, index).elements());
  }
  comm::SharedWindow window_;
  comm::HugeBuffer own_;
};

int index_in(const std::vector<int>& ranks, int rank) {
  const auto at = std::find(ranks.begin(), ranks.end(), rank);
  return at == ranks.end() ? -1 : static_cast<int>(at - ranks.begin());
}

// What RLHF programs do: every parameter is gathered on all trainers and broadcast by the first
// one; generators cut their slice.
class GatherAndBroadcast {
 public:
  GatherAndBroadcast(const comm::CommView& world, const base::ShardLayout& source,
                     const base::ShardLayout& target, const weightsync::Members& members, int shard,
                     int slice_index)
      : source_(source), target_(target), shard_(shard), slice_(slice_index) {
    trainers_ = comm::Comm::subset(world, members.sources[0], "peer trainers");
    std::vector<int> receivers{members.sources[0][0]};
    for (const auto& replica : members.targets) {
      for (const int rank : replica) {
        if (index_in(receivers, rank) < 0) receivers.push_back(rank);
      }
    }
    broadcast_ = comm::Comm::subset(world, receivers, "peer broadcast");
    receives_ = index_in(receivers, world.rank()) >= 0;
  }
  void run(const Store& from, Store& to) {
    for (size_t i = 0; i < source_.tensors().size(); ++i) {
      const auto& tensor = source_.tensors()[i];
      const int64_t rows = base::ShardLayout::rows_per_rank(tensor, source_.ranks());
      full_.resize(static_cast<size_t>(rows * tensor.columns() * source_.ranks()));
      if (shard_ >= 0) {
        if (!from.values[i].empty())
          std::memcpy(full_.data() + shard_ * rows * tensor.columns(), from.values[i].data(),
                      from.values[i].size() * 2);
        if (source_.ranks() > 1)
          trainers_->all_gather_in_place(full_.data(), rows * tensor.columns() * 2,
                                         comm::DType::u8);
      }
      if (receives_ && broadcast_.view().size() > 1)
        broadcast_->broadcast(full_.data(), tensor.elements() * 2, comm::DType::u8, 0);
      if (slice_ >= 0) cut(i, to);
    }
  }

 private:
  void cut(size_t i, Store& to) const {
    const auto& tensor = source_.tensors()[i];
    const base::Block whole{0, tensor.rows(), 0, tensor.columns()};
    const auto run = base::copy_between(whole, target_.block(i, slice_));
    if (!run) return;
    for (int64_t r = 0; r < run->rows; ++r) {
      std::memcpy(to.values[i].data() + run->target_offset + r * run->target_stride,
                  full_.data() + run->source_offset + r * run->source_stride,
                  static_cast<size_t>(run->columns) * 2);
    }
  }
  const base::ShardLayout& source_;
  const base::ShardLayout& target_;
  int shard_;
  int slice_;
  comm::Comm trainers_;
  comm::Comm broadcast_;
  bool receives_ = false;
  std::vector<uint16_t> full_;
};

double timed(const comm::CommView& world, const std::function<void()>& work) {
  world.barrier();
  const base::Stopwatch watch;
  work();
  return world.max(watch.seconds());
}

// Copy bandwidth of `cores` ranks at once, read + written bytes per second.
double copy_bandwidth(const comm::CommView& world, int cores) {
  const size_t bytes = size_t{96} << 20;
  std::vector<char> a(bytes, 1), b(bytes, 2);
  double best = 1e9;
  for (int r = 0; r < 5; ++r) {
    best = std::min(best, timed(world, [&] {
                      if (world.rank() < cores) std::memcpy(b.data(), a.data(), bytes);
                    }));
  }
  return 2.0 * static_cast<double>(bytes) * std::min(cores, world.size()) / best;
}

void print_row(const comm::CommView& world, const char* name, std::vector<double> seconds,
               double bytes) {
  std::sort(seconds.begin(), seconds.end());
  if (world.rank() == 0) {
    std::printf("%-36s min %8.2f ms  median %8.2f ms  %6.2f GB/s\n", name, seconds[0] * 1e3,
                seconds[seconds.size() / 2] * 1e3, bytes / seconds[0] / 1e9);
  }
}

class Bench {
 public:
  Bench(const comm::CommView& world, const Arguments& arguments)
      : world_(world),
        arguments_(arguments),
        shape_(smollm(arguments.layers, arguments.tensor_parallel)),
        source_(base::ShardLayout::by_rows(shape_.tensors, arguments.trainers)),
        target_(
            base::ShardLayout::sliced(shape_.tensors, arguments.tensor_parallel, shape_.slicing)),
        members_(make_members()),
        shard_(index_in(members_.sources[0], world.rank())),
        slice_(find_slice()),
        sharing_(comm::Comm::subset(world, members_.sources[0], "trainers")),
        from_(source_, shard_, &sharing_),
        to_(target_, slice_, nullptr) {}

  void run() {
    const double bytes = static_cast<double>(source_.total_elements()) * 2;
    const double copied = 0.5 * copy_bandwidth(world_, 2);  // bytes copied per second
    const double limit = bytes * arguments_.replicas / copied;
    if (world_.rank() == 0) {
      std::printf(
          "%d -> %d x TP %d%s, %.0f MB; copy bandwidth of 2 cores %.1f GB/s read + write, so the "
          "copies alone take %.2f ms\n",
          arguments_.trainers, arguments_.replicas, arguments_.tensor_parallel,
          arguments_.colocated ? ", colocated" : "", bytes / 1e6, 2 * copied / 1e9, limit * 1e3);
    }
    weightsync::SyncOptions options;
    options.plan.node_bucket_bytes = arguments_.node_bucket;
    options.delta = weightsync::DeltaScope::off;
    if (arguments_.threads > 1)
      options.parallel_for = [this](int64_t count, const auto& body) { on_threads(count, body); };
    std::vector<std::pair<const char*, weightsync::SyncOptions>> kinds;
    if (!arguments_.only_messages) {
      kinds.emplace_back("ours, shared memory", options);
      options.in_place = false;
      kinds.emplace_back("ours, buckets in shared memory", options);
      options.verify = false;
      kinds.emplace_back("ours, buckets, no digests", options);
      options.verify = true;
    }
    options.shared_memory = false;
    kinds.emplace_back("ours, messages", options);
    std::vector<std::unique_ptr<weightsync::WeightSync>> syncs;
    for (const auto& [name, kind] : kinds)
      syncs.push_back(
          std::make_unique<weightsync::WeightSync>(world_, source_, target_, members_, kind));
    GatherAndBroadcast peer(world_, source_, target_, members_, shard_, slice_);
    std::vector<std::vector<double>> seconds(kinds.size() + 1);
    for (int r = 0; r <= arguments_.repetitions; ++r) {
      for (size_t k = 0; k < kinds.size(); ++k)
        keep(r, seconds[k], timed(world_, [&] { sync(*syncs[k], r); }));
      keep(r, seconds.back(), timed(world_, [&] { peer.run(from_, to_); }));
    }
    for (size_t k = 0; k < kinds.size(); ++k) print_row(world_, kinds[k].first, seconds[k], bytes);
    print_row(world_, "peer: gather + broadcast per tensor", seconds.back(), bytes);
    const std::string line = weightsync::describe(syncs[0]->totals(sync(*syncs[0], 99)));
    if (world_.rank() == 0) std::printf("%s\n", line.c_str());
    if (arguments_.check) {
      const std::string problem = syncs[0]->differences({from_.read(), {}}, to_.write());
      if (!problem.empty()) throw InternalError(problem);
    }
    if (arguments_.delta > 0) run_delta(bytes);
  }

 private:
  weightsync::Members make_members() const {
    weightsync::Members members;
    members.sources.resize(1);
    for (int r = 0; r < arguments_.trainers; ++r) members.sources[0].push_back(r);
    int next = arguments_.colocated ? 0 : arguments_.trainers;
    for (int r = 0; r < arguments_.replicas; ++r) {
      members.targets.emplace_back();
      for (int k = 0; k < arguments_.tensor_parallel; ++k) members.targets.back().push_back(next++);
    }
    return members;
  }
  int find_slice() const {
    for (const auto& replica : members_.targets) {
      if (const int at = index_in(replica, world_.rank()); at >= 0) return at;
    }
    return -1;
  }
  weightsync::SyncCounters sync(weightsync::WeightSync& w, int64_t version) {
    const auto targets = to_.write();
    return w.run(version, {from_.read(), {}}, targets);
  }
  void on_threads(int64_t count, const std::function<void(int64_t, int64_t)>& body) const {
    std::vector<std::thread> others;
    const auto border = [&](int64_t t) { return t * count / arguments_.threads; };
    for (int64_t t = 1; t < arguments_.threads; ++t)
      others.emplace_back([&, t] { body(border(t), border(t + 1)); });
    body(0, border(1));
    for (auto& thread : others) thread.join();
  }
  // The first repetition touches pages and opens connections.
  static void keep(int repetition, std::vector<double>& all, double seconds) {
    if (repetition > 0) all.push_back(seconds);
  }
  void run_delta(double bytes) {
    weightsync::SyncOptions options;
    options.delta = weightsync::DeltaScope::everywhere;
    options.shared_memory = false;
    weightsync::WeightSync w(world_, source_, target_, members_, options);
    sync(w, 1);
    std::vector<double> seconds;
    weightsync::SyncCounters counters;
    for (int64_t version = 2; version < 2 + arguments_.repetitions; ++version) {
      for (auto& tensor : from_.values) {
        for (size_t e = 0; e < tensor.size(); ++e) {
          if (((e * 2654435761u + static_cast<uint64_t>(version) * 977u) >> 8) % 10000 <
              arguments_.delta * 10000)
            ++tensor[e];
        }
      }
      seconds.push_back(timed(world_, [&] { counters = sync(w, version); }));
    }
    print_row(world_, "ours, messages, delta", seconds, bytes);
    const std::string line = weightsync::describe(w.totals(counters));
    if (world_.rank() == 0) std::printf("%s\n", line.c_str());
  }

  comm::CommView world_;
  Arguments arguments_;
  Shape shape_;
  base::ShardLayout source_;
  base::ShardLayout target_;
  weightsync::Members members_;
  int shard_;
  int slice_;
  comm::Comm sharing_;
  Store from_;
  Store to_;
};

Arguments parse(int argc, char** argv) {
  Arguments out;
  CLI::App app("Weight sync of the 135M shape, beside gather and broadcast over the same MPI");
  app.add_option("--trainers", out.trainers)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--tp", out.tensor_parallel, "tensor-parallel ranks of a replica")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--replicas", out.replicas)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--repetitions", out.repetitions)
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--layers", out.layers)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--delta", out.delta,
                 "fraction of elements that change between syncs; 0: no delta row")
      ->capture_default_str();
  app.add_option("--node-bucket", out.node_bucket, "bytes of a bucket inside a node")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--threads", out.threads, "of a rank, for copies from tensors to tensors")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_flag("--colocated", out.colocated, "trainers and generators are the same ranks");
  app.add_flag("--check", out.check, "compare what arrived");
  app.add_flag("--only-messages", out.only_messages, "no shared memory");
  perf::parse_or_exit(app, argc, argv);
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  const Arguments arguments = parse(argc, argv);
  const trireme::comm::Session session;
  Bench(session.world(), arguments).run();
  return 0;
}
