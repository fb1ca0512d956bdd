// Reduce-scatter and gather of one fp32 buffer by the exchange that zero uses, as T4 has it.
//   mpirun -n 2 perf_collectives [--mib 64] [--repetitions 5] [--exchange auto|window|ring]
// Rank 0 prints one JSON object. The first repetition touches pages and does not count.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "harness/arguments.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/comm/session.hpp"
#include "trireme/comm/shard_exchange.hpp"

namespace trireme {
namespace {

struct Setting {
  int64_t mib = 64;
  int repetitions = 5;
  comm::ExchangeKind kind = comm::ExchangeKind::automatic;
};

Setting parse(int argc, char** argv) {
  using Kind = comm::ExchangeKind;
  static const std::map<std::string, Kind> kinds{
      {"auto", Kind::automatic}, {"window", Kind::windows}, {"ring", Kind::mpi_ring}};
  Setting s;
  CLI::App app("Gather and reduce-scatter of one slot");
  app.add_option("--mib", s.mib, "size of the slot")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--repetitions", s.repetitions)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--exchange", s.kind)
      ->transform(CLI::CheckedTransformer(kinds))
      ->capture_default_str();
  perf::parse_or_exit(app, argc, argv);
  return s;
}

class Bench {
 public:
  Bench(const Setting& setting, const comm::CommView& world) : setting_(setting), world_(world) {
    per_rank_ = (setting.mib << 20) / 4 / world.size() / 32 * 32;
    comm::SlotGeometry slot;
    slot.parameters.push_back({0, 0, per_rank_});
    slot.elements = per_rank_ * world.size();
    comm::ExchangeOptions options;
    options.kind = setting.kind;
    options.weight_type = comm::DType::f32;
    exchange_ = comm::make_shard_exchange(world, {slot}, options);
    sum_.assign(static_cast<size_t>(per_rank_), 0.0f);
  }

  void run() {
    for (int r = 0; r <= setting_.repetitions; ++r) {
      const double scatter = reduce_scatter();
      const double gather = all_gather();
      if (r == 0) continue;
      scatter_ms_.push_back(1e3 * scatter);
      gather_ms_.push_back(1e3 * gather);
    }
    std::sort(scatter_ms_.begin(), scatter_ms_.end());
    std::sort(gather_ms_.begin(), gather_ms_.end());
    if (world_.rank() != 0) return;
    const auto& counters = exchange_->counters();
    std::printf(
        "{\"ranks\": %d, \"mib\": %ld, \"exchange\": \"%s\", \"reduce_scatter_ms_best\": %.3f, "
        "\"reduce_scatter_ms_median\": %.3f, "
        "\"all_gather_ms_best\": %.3f, \"all_gather_ms_median\": %.3f, \"gathered_bytes\": %ld, "
        "\"reduced_bytes\": %ld}\n",
        world_.size(), static_cast<long>(setting_.mib), exchange_->kind().c_str(),
        scatter_ms_.front(), scatter_ms_[scatter_ms_.size() / 2], gather_ms_.front(),
        gather_ms_[gather_ms_.size() / 2], static_cast<long>(counters.gathered_bytes),
        static_cast<long>(counters.reduced_bytes));
  }

 private:
  // Seconds from the moment when all ranks have their gradients to the moment when all have their
  // sums.
  double reduce_scatter() {
    float* gradients = exchange_->gradients(0).front();
    std::fill_n(gradients, per_rank_ * world_.size(), 1.0f);
    world_.barrier();
    const base::Stopwatch watch;
    exchange_->reduce(0);
    exchange_->finish_reduce(0, {sum_.data()});
    world_.barrier();
    return watch.seconds();
  }

  // The gather of weights that were just written; it ends when every rank may read all of them.
  double all_gather() {
    exchange_->begin_update();
    std::memset(exchange_->own_slice(0), 1, static_cast<size_t>(per_rank_) * 4);
    exchange_->end_update();
    world_.barrier();
    const base::Stopwatch watch;
    exchange_->gather(0);
    exchange_->gathered(0);
    world_.barrier();
    const double seconds = watch.seconds();
    exchange_->release(0);
    return seconds;
  }

  Setting setting_;
  comm::CommView world_;
  int64_t per_rank_ = 0;
  std::unique_ptr<comm::ShardExchange> exchange_;
  std::vector<float> sum_;
  std::vector<double> scatter_ms_, gather_ms_;
};

}  // namespace
}  // namespace trireme

int main(int argc, char** argv) {
  try {
    const auto setting = trireme::parse(argc, argv);
    const trireme::comm::Session session;
    trireme::Bench(setting, session.world()).run();
  } catch (const trireme::UserError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.code());
  }
  return 0;
}
