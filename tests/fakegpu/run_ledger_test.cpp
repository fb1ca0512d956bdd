// The ledger of a rank against what it holds while weights go to the generators and while it saves:
// its device, and page-locked memory of the host. Ranks write answers, learn from them, sync and
// save in turn, by the program's WeightBridge and Checkpointing on the fake GPU.
#include "torch/torch.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cctype>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "driver/checkpointing.hpp"
#include "driver/weight_bridge.hpp"
#include "fakegpu/device_lane.hpp"
#include "fakegpu/host_as_device.hpp"
#include "support/world.hpp"
#include "trireme/base/text.hpp"
#include "trireme/comm/device_bytes.hpp"
#include "trireme/generate/engine.hpp"
#include "trireme/kernels/products.hpp"
#include "trireme/kernels/token_log_probs.hpp"
#include "trireme/learn/sharded_models.hpp"
#include "trireme/plan/job.hpp"
#include "unit/generate/tiny_model.hpp"
#include "unit/plan/layouts.hpp"
#include "unit/zero/tiny_model.hpp"

namespace trireme::test {
namespace {

using config::DType;
using plan::Phase;

struct OneRun {
  std::string name;
  ShapeNumbers shape;
  DType type = DType::bf16;
  bool one_replica = false;  // of all ranks; else each is one
  bool critic = false;
  bool average = false;
  bool messages = false;  // weightsync.shared_memory = "never"
  int64_t bucket = int64_t{8} << 20;
};

constexpr int64_t prompt = 24, answer = 8, texts = 8;  // a replica's

// A folder of all ranks, removed at the end.
class RunPlace {
 public:
  RunPlace()
      : path_(std::filesystem::temp_directory_path() /
              base::text("trireme-run-ledger-",
                         world().broadcast_value(static_cast<int64_t>(::getpid()), 0))) {}
  RunPlace(const RunPlace&) = delete;
  ~RunPlace() {
    world().barrier();
    std::error_code ignored;
    if (world().rank() == 0) std::filesystem::remove_all(path_, ignored);
  }
  std::string run() const { return (path_ / "run").string(); }

 private:
  std::filesystem::path path_;
};

config::Options deck_of(const OneRun& r, const std::string& folder) {
  config::Options options;
  options.run.dir = folder;
  options.model.dtype =
      r.type == DType::bf16 ? config::ComputeType::bf16 : config::ComputeType::fp32;
  options.data.max_len = prompt + answer;
  options.rollout.batch_size = r.one_replica ? texts : texts * world().size();
  options.rollout.max_new_tokens = answer;
  options.train.batch_size = options.rollout.batch_size;
  options.train.micro_batch_tokens = 4 * (prompt + answer);
  options.train.enable_ema = r.average;
  options.generate.max_batch = texts;
  options.generate.tensor_parallel = r.one_replica ? world().size() : 1;
  options.generate.kv_memory = {0, int64_t{1} << 20};
  options.weightsync.delta = false;
  options.weightsync.bucket_bytes.count = r.bucket;
  options.weightsync.shared_memory =
      r.messages ? config::SharedMemory::never : config::SharedMemory::automatic;
  return options;
}

std::vector<plan::Ledger> ledgers_of(const OneRun& r, const config::Options& options,
                                     const comm::Roles& roles, const model::ModelSpec& actor,
                                     const model::ModelSpec& critic) {
  plan::JobModels models;
  models.actor = layout(actor);
  if (r.critic) models.critic = layout(critic);
  models.slices = model::tensor_parallel_layout(actor, roles.tensor_parallel());
  const plan::Machine machine{
      .name = "gpu", .device_bytes = int64_t{1} << 50, .host_bytes = int64_t{1} << 50};
  const plan::Job job{options, roles.map, roles.topology.node_of, models, machine, r.type};
  std::vector<plan::Ledger> out;
  for (int rank = 0; rank < world().size(); ++rank) out.push_back(plan::memory_of_rank(job, rank));
  return out;
}

int64_t sum_of(const plan::Ledger& ledger, plan::Place place, Phase phase,
               const std::string& owner = "", const std::string& what = "") {
  int64_t sum = 0;
  for (const auto& entry : ledger.entries()) {
    const bool chosen =
        owner.empty() ? entry.owner != "process"
                      : entry.owner == owner;  // a fake device has no context and no communicators
    if (chosen && entry.place == place && entry.what.starts_with(what) &&
        (entry.phases & plan::phase_bit(phase)) != 0)
      sum += entry.bytes;
  }
  return sum;
}

// A rank's part of the run. Declared as the program has them: what is used outlives who uses it.
class Rank {
 public:
  Rank(const OneRun& r, const config::Options& options, const comm::Roles& roles,
       const driver::RunFolder& folder, const model::ModelSpec& actor,
       const model::ModelSpec& critic)
      : run_(r),
        options_(options),
        actor_spec_(actor),
        critic_spec_(critic),
        actor_(make(roles, actor)),
        critic_(r.critic ? make(roles, critic) : nullptr),
        replica_(roles.generators.along(comm::Axis::tensor)),
        weights_(actor, r.type, replica_.rank(), replica_.size(), generate::Place::device),
        bridge_(options, roles, actor, at::kCPU, false),
        locked_for_rings_(static_cast<int64_t>(fakegpu::locked_bytes())),
        saver_(options, roles, folder, at::kCPU, true) {
    if (r.average) actor_->enable_average(0.9);
    saver_.add({"actor", &actor_spec_, actor_.get(), r.average});
    if (critic_)
      saver_.add(
          {"critic", &critic_spec_, critic_.get(), false, &learn::TrainingState::critic_steps});
    generate::EngineOptions chosen;
    chosen.kv_bytes = options.generate.kv_memory.bytes;
    chosen.max_batch = texts;
    chosen.backend = generate::BackendKind::torch;
    engine_.emplace(actor_spec_, weights_, chosen, replica_);
    sync(0);
  }

  void write() {
    for (uint64_t i = 0; i < texts; ++i) {
      generate::Request request;
      request.id = next_++;
      request.prompt = tiny_prompt(prompt, i, actor_spec_.shape.vocab);
      request.sampling.max_new_tokens = answer;
      engine_->submit(std::move(request));
    }
    while (!engine_->idle()) static_cast<void>(engine_->step());
    engine_->release();
    weights_.release();
  }

  void learn() {
    for (auto* model : {actor_.get(), critic_.get()}) {
      if (model == nullptr) continue;
      const auto batch = tiny_batch(model->spec().shape, 3 + static_cast<uint64_t>(world().rank()),
                                    std::vector<int64_t>(4, prompt + answer));
      model->forward_backward(batch, loss_of(model->spec(), batch));
      static_cast<void>(model->step({.lr = 1e-3}));
    }
  }

  void sync(int64_t version) { bridge_.run(version, actor_.get(), &weights_); }

  void save(int64_t iteration) {
    driver::RunState state;
    state.iteration = iteration;
    state.training.actor_steps = actor_->steps();
    saver_.save(state, {}, true);
  }

  int64_t locked_for_rings() const { return locked_for_rings_; }

 private:
  std::unique_ptr<zero::ShardedModel> make(const comm::Roles& roles,
                                           const model::ModelSpec& spec) const {
    auto model = learn::make_sharded(roles.trainers, spec, at::kCPU,
                                     {.compute = run_.type, .rings = roles.rings});
    model->load(initial_reader(spec));
    return model;
  }

  const OneRun& run_;
  const config::Options& options_;
  const model::ModelSpec &actor_spec_, &critic_spec_;
  std::unique_ptr<zero::ShardedModel> actor_, critic_;
  comm::CommView replica_;
  generate::GeneratorWeights weights_;
  driver::WeightBridge bridge_;
  int64_t locked_for_rings_;
  driver::Checkpointing saver_;
  std::optional<generate::Engine> engine_;
  uint64_t next_ = 0;
};

struct Counted {
  int64_t sync = 0, save = 0;                   // of the device, the most at a time
  int64_t rings = 0, messages = 0, mirror = 0;  // page-locked
};

Counted count(const OneRun& r, const config::Options& options, const comm::Roles& roles,
              const model::ModelSpec& actor, const model::ModelSpec& critic) {
  const HostAsDevice device;
  const driver::RunFolder folder(options, roles.world);
  Rank rank(r, options, roles, folder, actor, critic);
  const auto most = [] { return comm::device_bytes().held + HostAsDevice::take_tensor_peak(); };
  const auto locked = [] { return static_cast<int64_t>(fakegpu::locked_bytes()); };
  Counted out;
  for (int64_t iteration = 1; iteration <= 2; ++iteration) {
    rank.write();
    rank.learn();
    static_cast<void>(most());
    rank.sync(iteration);
    out.sync = most();
    const int64_t before = iteration == 1 ? locked() : 0;
    rank.save(iteration);
    out.save = most();
    if (iteration == 1) {
      out.rings = rank.locked_for_rings();
      out.messages = before - out.rings;
      out.mirror = locked() - before;
    }
    EXPECT_EQ(locked(), out.rings + out.messages + out.mirror) << "nothing is locked anew";
  }
  return out;
}

class RunLedger : public testing::TestWithParam<OneRun> {};

TEST_P(RunLedger, CountsASyncAndASave) {
  own_device();
  fakegpu::set_delays({.legacy_us = 0, .others_us = 0});
  const OneRun& r = GetParam();
  if (r.type == DType::bf16 && !kernels::multiplies_bf16(at::kCPU))
    GTEST_SKIP() << "here products of bf16 go through fp32 copies, which a GPU's do not";
  const RunPlace place;
  const config::Options options = deck_of(r, place.run());
  const comm::Roles roles = comm::make_roles(options, world());
  const auto actor = model::describe(shape_of(r.shape), model::HeadKind::language),
             critic = model::describe(shape_of(r.shape), model::HeadKind::score);
  const auto ledgers = ledgers_of(r, options, roles, actor, critic);
  const plan::Ledger& mine = ledgers[static_cast<size_t>(world().rank())];
  const Counted counted = count(r, options, roles, actor, critic);
  std::string line = base::text("  ", r.name, ": MB counted, and more planned:");
  const auto expect_planned = [&](const char* what, int64_t plan, int64_t bytes,
                                  double room = 1.03) {
    constexpr double small = 1 << 17;
    EXPECT_GE(plan, bytes) << what;
    EXPECT_LE(static_cast<double>(plan), room * static_cast<double>(bytes) + small) << what;
    line += base::text(" ", what, " ", base::fixed(1e-6 * static_cast<double>(bytes), 3));
    if (bytes > 0)
      line += base::text(
          " ", base::fixed(100.0 * (static_cast<double>(plan) / static_cast<double>(bytes) - 1), 1),
          " %");
  };
  expect_planned("sync", sum_of(mine, plan::Place::device, Phase::sync), counted.sync);
  expect_planned("save", sum_of(mine, plan::Place::device, Phase::save), counted.save);
  // Of the host: the ring of each rank is locked by all of its node. Each counts as the one with
  // most, and slices of a replica take more of one shard than of another; all that is locked is
  // within 3 % even so.
  int64_t rings = 0;
  for (const auto& ledger : ledgers)
    rings += sum_of(ledger, plan::Place::host, Phase::sync, "weight sync", "rings");
  rings += sum_of(mine, plan::Place::host, Phase::sync, "weight sync", "a bucket");
  const int64_t messages = sum_of(mine, plan::Place::host, Phase::sync, "weight sync", "buckets"),
                mirror = sum_of(mine, plan::Place::host, Phase::sync, "checkpoint");
  const double room = r.one_replica ? 1.35 : 1.03;
  expect_planned("rings", rings, counted.rings, room);
  expect_planned("messages", messages, counted.messages, room);
  EXPECT_EQ(mirror, counted.mirror);
  EXPECT_EQ(sum_of(mine, plan::Place::host, Phase::save, "checkpoint"), counted.mirror);
  expect_planned("locked", rings + messages + mirror,
                 counted.rings + counted.messages + counted.mirror);
  if (world().rank() == 0) std::printf("%s\n", line.c_str());
}

INSTANTIATE_TEST_SUITE_P(Runs, RunLedger,
                         testing::Values(OneRun{.name = "a replica a rank",
                                                .shape = {2, 128, 4, 4, 352, 1000}},
                                         OneRun{.name = "one replica",
                                                .shape = {3, 128, 8, 4, 384, 500},
                                                .one_replica = true,
                                                .average = true},
                                         OneRun{.name = "fp32, critic",
                                                .shape = {2, 128, 4, 4, 352, 1000},
                                                .type = DType::f32,
                                                .critic = true,
                                                .bucket = int64_t{256} << 10},
                                         OneRun{.name = "messages",
                                                .shape = {4, 128, 4, 4, 352, 500},
                                                .one_replica = true,
                                                .messages = true},
                                         OneRun{.name = "messages to a replica a rank",
                                                .shape = {2, 128, 4, 4, 352, 1000},
                                                .messages = true,
                                                .bucket = int64_t{128} << 10}),
                         [](const auto& tested) {
                           std::string name = tested.param.name;
                           for (char& letter : name)
                             letter =
                                 std::isalnum(static_cast<unsigned char>(letter)) ? letter : '_';
                           return name;
                         });

}  // namespace
}  // namespace trireme::test
