// A run whose iterations are steps of a tiny actor.
#pragma once

#include <gtest/gtest.h>

#include "driver/run_control.hpp"
#include "unit/driver/tiny_actor.hpp"
#include "unit/driver/tiny_runs.hpp"

namespace trireme::driver {

// A process of a run.
struct ControlledRun {
  ControlledRun(const config::Options& options, int64_t iterations, learn::Inputs inputs = {})
      : run(options, session(), config::Command::sft),
        actor(run.options),
        control(run,
                {.models = {{"actor", &actor.spec, actor.model.get()}},
                 .export_trained =
                     [this](const std::string& name) {
                       exports.push_back(name);
                       if (export_error) throw UserError(*export_error, "no room");
                     },
                 .inputs = std::move(inputs),
                 .rollouts = [this] { return parts; }},
                iterations) {
    auto start = control.resume_or_begin(iterations);
    state = start.state;
    found = start.parts;
    resumed = start.resumed;
  }

  // The next iteration. `judged`: ckpt.best_metric of its evaluation.
  std::optional<ExitCode> iterate(std::optional<double> judged = {}) {
    const int64_t iteration = state.iteration + 1;
    run.policy.begins(iteration);
    report::IterationMetrics metrics;
    metrics.iteration = iteration;
    actor.learn(static_cast<uint64_t>(iteration));
    state.iteration = iteration;
    state.training.actor_steps = actor.model->steps();
    state.outcome.judged = judged;
    control.report(metrics, state, 0.25);
    return control.end_iteration(state, 0.25);
  }

  Run run;
  TinyActor actor;
  std::vector<std::string> exports;
  std::optional<ExitCode> export_error;
  StoredParts parts, found;
  RunState state;
  bool resumed = false;
  RunControl control;
};

class Control : public TinyRuns {
 protected:
  config::Options options(const Overrides& overrides = {}) const {
    return deck(config::Command::sft, "run", overrides);
  }
  // A file that somebody made; seen by rank 0 before any rank asks.
  void touch(const std::string& file) const {
    if (test::world().rank() == 0) std::ofstream(in(file)) << "";
    test::world().barrier();
  }
  // Behind a save, until all ranks have looked.
  std::vector<int64_t> saved() const {
    test::world().barrier();
    auto found = steps("run");
    test::world().barrier();
    return found;
  }
};

}  // namespace trireme::driver
