// Saves beside training, and which checkpoint a start takes, at np 1, 2 and 4.
#include "torch/torch.hpp"

#include "unit/driver/saves.hpp"

#include "trireme/base/fault_gates.hpp"
#include "trireme/base/files.hpp"
#include "unit/config/expect_error.hpp"

namespace trireme::driver {
namespace {

using test::world;

// ---- Beside training ----

// A save that is held before it reads a value, and a step meanwhile: what is committed is what the
// run had when the save began, whether copies may pile up or the step has to wait.
TEST_F(Saves, AStepThatOvertakesASaveDoesNotChangeIt) {
  for (const auto copies : {config::CopyAside::all, config::CopyAside::stage}) {
    options_.ckpt.copy_aside = copies;
    options_.fault.at = {"gate:*:ckpt.laid_out:1:1"};
    if (copies == config::CopyAside::stage)
      options_.fault.at.emplace_back("open:*:wait for the checkpoint:1:1");
    std::vector<float> saved, moments, later;
    {
      Saver start(options_, true);
      start.actor.learn(1);
      saved = start.actor.values();
      moments = start.actor.values(&zero::ShardedModel::moment2);
      start.checkpoints.save(start.state_after(1), {}, false);
      EXPECT_TRUE(start.checkpoints.busy());
      EXPECT_EQ(start.checkpoints.committed(), -1);
      static_cast<void>(start.checkpoints.take_stall());
      start.actor.learn(2);
      later = start.actor.values();
      EXPECT_GT(start.checkpoints.take_stall(), 0) << "copies, and waits";
      EXPECT_EQ(start.checkpoints.take_stall(), 0) << "of what was since";
      base::open_gate(1);
      EXPECT_TRUE(start.checkpoints.holds(1));
      EXPECT_FALSE(start.checkpoints.busy());
    }
    EXPECT_NE(later, saved);
    world().barrier();
    options_.fault.at.clear();
    {
      Saver second(options_, true);
      StoredParts parts;
      ASSERT_TRUE(second.checkpoints.resume(parts));
      EXPECT_EQ(second.actor.values(), saved);
      EXPECT_EQ(second.actor.values(&zero::ShardedModel::moment2), moments);
      EXPECT_EQ(second.actor.model->steps(), 1);
    }
    world().barrier();
    if (world().rank() == 0)
      for (const auto& entry : std::filesystem::directory_iterator(parent_.path()))
        std::filesystem::remove_all(entry);
    world().barrier();
  }
}

// What became of a save in the background is known as soon as it is done on every rank, and not
// only at the next save.
TEST_F(Saves, ASaveInTheBackgroundIsLookedAfter) {
  options_.ckpt.interval.iterations = 10;
  options_.fault.at = {"gate:*:ckpt.laid_out:1:1", "io_fail:0:ckpt.fsync:1:28"};
  Saver start(options_);
  start.checkpoints.save(start.state_after(1), {}, false);
  start.checkpoints.look_after_save(2);
  EXPECT_EQ(start.checkpoints.failures(), 0) << "it is at work";
  world().barrier();
  base::open_gate(1);
  while (world().max(int32_t{start.checkpoints.busy()}) > 0) continue;
  start.checkpoints.look_after_save(3);
  EXPECT_EQ(start.checkpoints.failures(), 1) << "on every rank";
  EXPECT_TRUE(start.checkpoints.due(3)) << "it is tried again at once";
  EXPECT_FALSE(start.checkpoints.holds(1));
  start.checkpoints.save(start.state_after(3), {}, true);
  EXPECT_EQ(start.checkpoints.committed(), 3);
  EXPECT_FALSE(start.checkpoints.due(4));
}

// ---- Which checkpoint a start takes ----

TEST_F(Saves, ANamedCheckpointIsObeyedOnce) {
  run_and_save({1, 2, 3});
  options_.ckpt.resume = (parent_.path() / "ckpt/step-000001").string();
  EXPECT_EQ(found(), 1);
  EXPECT_EQ(found(), 1) << "a start that saved nothing has recorded nothing";
  run_and_save({2});
  EXPECT_EQ(found(), 2) << "what that start has saved, and not the third, which is older";
  if (world().rank() == 0) {
    EXPECT_EQ(folders(), (std::vector<std::string>{"step-000001", "step-000002", "step-000003"}));
  }
  world().barrier();
  options_.ckpt.resume = "auto";
  EXPECT_EQ(found(), 2);
}

// After a step back the branch that was left neither goes nor counts.
TEST_F(Saves, ABranchThatWasLeftStays) {
  options_.ckpt.keep = 2;
  run_and_save({5, 6, 7});
  options_.ckpt.resume = (parent_.path() / "ckpt/step-000006").string();
  run_and_save({10, 11, 12});
  if (world().rank() == 0) {
    EXPECT_EQ(folders(), (std::vector<std::string>{"step-000007", "step-000011", "step-000012"}));
  }
  world().barrier();
}

TEST_F(Saves, WhatIsFoundDecides) {
  const auto damage = [this](const char* file) {
    if (world().rank() == 0) {
      const auto path = parent_.path() / "ckpt/step-000002" / file;
      std::string bytes = base::read_file(path);
      bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
      std::ofstream(path, std::ios::binary) << bytes;
    }
    world().barrier();
  };
  run_and_save({1, 2});
  EXPECT_EQ(found(), 2);
  damage("data.h5");
  EXPECT_EQ(found(), 1) << "it is damaged: the one before";
  damage("data.h5");
  EXPECT_EQ(found(), 2) << "whole again";
  damage("manifest.json");
  EXPECT_EQ(found(), 1);
  options_.ckpt.resume = (parent_.path() / "ckpt/step-000002").string();
  config::error_of(ExitCode::bad_data, [&] { static_cast<void>(found()); });
}

// It is whole: no older one is tried in its place, whoever made that.
TEST_F(Saves, CheckpointsOfAnotherCommandAreRefused) {
  {
    Saver start(options_);
    RunState state = start.state_after(1);
    state.command = "sft";
    start.checkpoints.save(state, {}, true);
    start.checkpoints.save(start.state_after(2), {}, true);
  }
  world().barrier();
  Saver start(options_);
  start.checkpoints.belong_to("sft");
  StoredParts parts;
  EXPECT_THAT(config::error_of(ExitCode::bad_data, [&] { start.checkpoints.resume(parts); }),
              testing::AllOf(testing::HasSubstr("trireme ppo"), testing::HasSubstr("run.dir")));
  EXPECT_EQ(start.checkpoints.began_behind(), std::nullopt);
}

// A copy of the folder of checkpoints in a new run: what that saves is newer than what was copied.
TEST_F(Saves, AFolderOfCheckpointsMayBeCopied) {
  run_and_save({1, 2});
  run_and_save({3});
  const auto old = parent_.path() / "ckpt";
  options_.run.dir = (parent_.path() / "copy").string();
  if (world().rank() == 0) {
    std::filesystem::create_directories(parent_.path() / "copy");
    std::filesystem::copy(old, parent_.path() / "copy/ckpt",
                          std::filesystem::copy_options::recursive);
  }
  world().barrier();
  EXPECT_EQ(found(), 3);
  options_.ckpt.resume = (old / "step-000001").string();
  run_and_save({2});
  options_.ckpt.resume = "auto";
  EXPECT_EQ(found(), 2) << "saved last";
}

}  // namespace
}  // namespace trireme::driver
