// A process of a run that saves: its models, its folder, its checkpoints.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "driver/checkpointing.hpp"
#include "trireme/base/fault_point.hpp"
#include "trireme/config/fault.hpp"
#include "unit/driver/tiny_actor.hpp"

namespace trireme::driver {

struct Saver {
  Saver(const config::Options& options, bool average = false)
      : actor(options),
        folder(options, test::world()),
        faults(options, test::world().rank()),
        checkpoints(options, actor.roles, folder, at::kCPU, true) {
    if (average) actor.model->enable_average(0.9);
    checkpoints.add({"actor", &actor.spec, actor.model.get(), average});
  }
  RunState state_after(int64_t iteration) const {
    RunState state;
    state.iteration = iteration;
    state.command = "ppo";
    state.deck = folder.deck();
    state.training.actor_steps = actor.model->steps();
    return state;
  }

  // Those of the deck, with gates in its run folder.
  struct Faults {
    Faults(const config::Options& options, int rank) {
      config::install_faults(options.fault, options.run.dir, rank);
    }
    ~Faults() { base::install_faults({}); }
  };

  TinyActor actor;
  RunFolder folder;
  Faults faults;
  Checkpointing checkpoints;
};

class Saves : public testing::Test {
 protected:
  Saves() {
    options_.run.dir = parent_.path().string();
    options_.run.log_level = config::LogLevel::error;
  }
  // A run that saves behind each of these iterations and ends.
  void run_and_save(const std::vector<int64_t>& iterations) const {
    Saver start(options_);
    StoredParts parts;
    start.checkpoints.resume(parts);
    for (const int64_t iteration : iterations) {
      start.actor.learn(static_cast<uint64_t>(iteration));
      start.checkpoints.save(start.state_after(iteration), {}, true);
    }
    test::world().barrier();
  }
  // What a start of the deck finds: the iteration that it goes on behind.
  std::optional<int64_t> found() const {
    Saver start(options_);
    StoredParts parts;
    const auto state = start.checkpoints.resume(parts);
    test::world().barrier();
    return state ? std::optional(state->iteration) : std::nullopt;
  }
  // The numbers of the checkpoints that there are, on rank 0.
  std::vector<std::string> folders() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(parent_.path() / "ckpt")) {
      const std::string name = entry.path().filename();
      if (name.starts_with("step-")) names.push_back(name);
    }
    std::ranges::sort(names);
    return names;
  }

  const test::SharedFolder parent_;
  config::Options options_;
};

}  // namespace trireme::driver
