// A trainer may be stopped before any optimizer step and goes on with the same bits, at np 1, 2 and
// 4.
#include "torch/torch.hpp"

#include "trireme/learn/trainer.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "support/samples.hpp"
#include "trireme/base/fault_point.hpp"
#include "trireme/learn/step_plan.hpp"
#include "unit/zero/tiny_model.hpp"

namespace trireme::learn {
namespace {

using comm::May;
using comm::Then;
using test::SharedFolder;
using test::world;

constexpr uint64_t all_sequences = 12;  // of all ranks
constexpr int64_t steps = 6;            // 3 of each of 2 epochs

config::Options deck() {
  config::Options options;
  options.model.dtype = config::ComputeType::fp32;
  options.algo.advantage.estimator = config::Estimator::reinforce;
  options.algo.kl.init_coef = 0;
  options.actor.adam.lr = 1e-2;
  options.actor.entropy_coef = 0;
  options.train.batch_size = 4;
  options.train.micro_batch_tokens = 24;
  options.train.max_epochs = 2;
  return options;
}

// A trainer with its share of a scored rollout.
class Learner {
 public:
  explicit Learner(const config::Options& options)
      : roles_(comm::make_roles(options, world())),
        spec_(model::describe(test::tiny_shape(test::Tied::no), model::HeadKind::language)),
        trainer(options, roles_, {spec_}, {at::kCPU}, machine::MemoryCheck{}, steps) {
    trainer.actor().load(test::initial_reader(spec_));
    if (options.algo.distill.in_steps()) add_teacher();
    std::vector<uint64_t> ids;
    for (uint64_t id = 0; id < all_sequences && world().rank() == 0; ++id) ids.push_back(id);
    Samples samples = test::samples_of(ids);
    for (auto& id : samples.ids) id %= static_cast<int32_t>(spec_.shape.vocab);
    for (const uint64_t id : ids) samples.reward.push_back(static_cast<float>(id % 3) - 1);
    Exchange exchange(world());
    listed = exchange.list(samples);
    const auto plan = plan_epoch(options, listed, world().size(), 1, 0);
    experience = ppo::Experience::from(exchange.move(samples, listed, plan.owner));
  }
  // What begins an iteration's learning.
  void prepare() {
    ASSERT_TRUE(trainer.score(experience));
    trainer.advantages(experience, listed, 0);
  }
  Then take_steps(comm::Progress* progress = nullptr, BadBatches* bad = nullptr) {
    return trainer.take_steps(experience, listed, {.progress = progress, .bad_batches = bad},
                              report);
  }
  std::vector<float> weights() {
    std::vector<float> all;
    for (size_t p = 0; p < spec_.parameters.size(); ++p) {
      const float* values = trainer.actor().master(p).host();
      if (values) all.insert(all.end(), values, values + trainer.actor().own(p).elements());
    }
    return all;
  }

 private:
  // The student with other weights.
  void add_teacher() {
    zero::ShardedModelOptions teacher_options;
    teacher_options.compute = config::DType::f32;
    auto teacher = std::make_unique<zero::ShardedModel>(model::frozen(spec_),
                                                        roles_.trainers.along(comm::Axis::shard),
                                                        std::nullopt, at::kCPU, teacher_options);
    teacher->load(
        [read = test::initial_reader(spec_)](size_t p, const base::Block& block, float* rows) {
          read(p, block, rows);
          for (int64_t i = 0; i < block.elements(); ++i) rows[i] *= i % 3 == 0 ? 1.5f : 0.5f;
        });
    trainer.add_teacher(std::move(teacher));
  }

  comm::Roles roles_;
  model::ModelSpec spec_;

 public:
  Trainer trainer;
  SequenceList listed;
  ppo::Experience experience;
  UpdateReport report;
};

// Asks to leave from its `from`-th question on, on the last rank alone.
struct Stop : comm::LeaveWatch {
  explicit Stop(int64_t question) : from(question) {}
  bool leaves_inside() const override { return true; }
  job::StopReason wish() override {
    const bool now = asked++ >= from && world().rank() == world().size() - 1;
    return now ? job::StopReason::interrupt : job::StopReason::none;
  }
  void waited() override {}
  int64_t from, asked = 0;
};

TEST(Trainer, GoesOnWithTheSameBitsAfterAStopBeforeAnyStep) {
  const config::Options options = deck();
  Learner undisturbed(options);
  undisturbed.prepare();
  EXPECT_EQ(undisturbed.take_steps(), Then::go_on);
  EXPECT_EQ(undisturbed.report.steps, steps);
  const std::vector<float> wanted = undisturbed.weights();
  for (const int64_t before : {int64_t{0}, int64_t{1}, int64_t{3}, steps - 1}) {
    Learner learner(options);
    learner.prepare();
    Stop stop(before);
    comm::Progress progress(&stop);
    EXPECT_EQ(learner.take_steps(&progress), Then::leave);
    EXPECT_EQ(learner.report.steps, before);
    EXPECT_EQ(progress.reason(), job::StopReason::interrupt);
    EXPECT_EQ(learner.take_steps(), Then::go_on);
    EXPECT_EQ(learner.report.steps, steps);
    EXPECT_EQ(learner.weights(), wanted) << "stopped before step " << before;
    EXPECT_EQ(learner.report.policy_loss, undisturbed.report.policy_loss);
    EXPECT_EQ(learner.report.grad_norm, undisturbed.report.grad_norm);
  }
}

// The teacher runs in each step; its divergence falls, and a stop between steps changes nothing.
TEST(Trainer, ATeacherOfDistributionsIsComparedInEachStep) {
  for (const int64_t top_k : {0, 3}) {
    config::Options options = deck();
    options.algo.distill.coef = 10;
    options.algo.distill.policy = config::DistillPolicy::distribution;
    options.algo.distill.beta = 0.5;
    options.algo.distill.top_k = top_k;
    options.algo.advantage.no_std_norm = true;
    Learner undisturbed(options), learner(options);
    std::vector<double> divergences;
    for (int epoch = 0; epoch < 4; ++epoch) {
      undisturbed.prepare();
      EXPECT_FALSE(undisturbed.experience.ref_log_probs.defined());
      EXPECT_EQ(undisturbed.take_steps(), Then::go_on);
      UpdateReport report = std::exchange(undisturbed.report, {});
      if (epoch == 0) {
        learner.prepare();
        Stop stop(3);
        comm::Progress progress(&stop);
        EXPECT_EQ(learner.take_steps(&progress), Then::leave);
        EXPECT_EQ(learner.take_steps(), Then::go_on);
        EXPECT_EQ(learner.weights(), undisturbed.weights());
        EXPECT_EQ(learner.report.distill_loss, report.distill_loss);
      }
      undisturbed.trainer.average(report);
      divergences.push_back(report.distill_loss);
      EXPECT_EQ(undisturbed.trainer.kl_to_reference({}, report), report.distill_loss);
    }
    EXPECT_GT(divergences.back(), 0);
    EXPECT_LT(divergences.back(), 0.7 * divergences.front()) << "top_k " << top_k;
  }
}

// Mail is taken after each micro-batch of each step, and before each step.
TEST(Trainer, WorksOnWhatOthersNeedBetweenMicroBatches) {
  const config::Options options = deck();
  Learner learner(options);
  learner.prepare();
  comm::Progress progress;
  int64_t rounds = 0;
  progress.add([&rounds] { return ++rounds, 0; });
  EXPECT_EQ(learner.take_steps(&progress), Then::go_on);
  EXPECT_GE(rounds, 2 * steps);
}

TEST(Trainer, APassThatWasLeftIsMadeAgain) {
  const config::Options options = deck();
  Learner undisturbed(options), learner(options);
  undisturbed.prepare();
  Stop stop(0);
  comm::Progress progress(&stop);
  EXPECT_FALSE(learner.trainer.score(learner.experience, -1, &progress, May::leave));
  EXPECT_EQ(stop.asked, 1) << "after its first micro-batch";
  EXPECT_TRUE(learner.trainer.score(learner.experience, -1, &progress, May::stay));
  EXPECT_TRUE(at::equal(learner.experience.old_log_probs, undisturbed.experience.old_log_probs));
}

TEST(Trainer, AStepWithoutAFiniteGradientIsSkippedAndKept) {
  const config::Options options = deck();
  const SharedFolder folder;
  Learner learner(options);
  learner.prepare();
  const std::vector<float> before = learner.weights();
  BadBatches bad(folder.path(), world().rank());
  base::install_faults({{.kind = "nan", .place = "loss", .pass = 0}});
  EXPECT_EQ(learner.take_steps(nullptr, &bad), Then::go_on);
  base::install_faults({});
  EXPECT_EQ(learner.report.skipped_steps, steps);
  EXPECT_EQ(learner.weights(), before);
  world().barrier();
  EXPECT_FALSE(std::filesystem::is_empty(folder.path() / "not_finite"));
  world().barrier();
}

TEST(Trainer, TheKlCoefficientFollowsTheKlThatWasSeen) {
  config::Options options = deck();
  options.algo.kl.target = 0.1;
  Learner learner(options);
  const double low = learner.trainer.next_state(0.5, 0.01).kl_coefficient;
  const double high = learner.trainer.next_state(0.5, 1.0).kl_coefficient;
  EXPECT_LT(low, 0.5);
  EXPECT_GT(high, 0.5);
  EXPECT_EQ(learner.trainer.next_state(0.5, std::nullopt).kl_coefficient, 0.5);
  EXPECT_EQ(learner.trainer.state_inside(0.25), (TrainingState{0, 0, 0.25}));
}

}  // namespace
}  // namespace trireme::learn
