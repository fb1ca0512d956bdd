// The model of one judge or several: weights, pages and engine of this rank.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>

#include "trireme/config/options.hpp"
#include "trireme/config/reward_sources.hpp"
#include "trireme/generate/engine.hpp"
#include "trireme/generate/weights.hpp"
#include "trireme/model/model_files.hpp"
#include "trireme/reward/judge.hpp"
#include "trireme/text/stops.hpp"
#include "trireme/text/tokenizer.hpp"

namespace trireme::reward {

// A judge's folder, checked. Throws UserError(bad_data) for a reward model,
// weights that do not fit config.json, a tokenizer with other tokens.
struct JudgeFolder {
  JudgeFolder(const std::string& path, const std::string& source);
  model::ModelFolder files;
  model::ModelSpec spec;
  text::Tokenizer tokenizer;
};

class JudgeModel {
 public:
  // Loads it. Local.
  JudgeModel(const config::JudgeModel& judge, const config::Options& options,
             const JudgeEnvironment& environment);
  JudgeModel(const JudgeModel&) = delete;

  const text::Tokenizer& tokenizer() const { return tokenizer_; }
  // Tokens of a sequence.
  int64_t longest() const { return longest_; }
  int64_t weight_bytes() const { return weights_.bytes(); }
  int64_t cache_bytes() const { return engine_options_.kv_bytes; }

  // Writes after `prompt`; `take` gets the result in some work().
  void submit(uint64_t id, std::vector<int32_t> prompt, const config::RewardSource& how,
              std::function<void(const generate::Result&)> take);
  // A step of the engine, or as many as a few milliseconds have room for.
  void work();
  // If the engine is idle, clears its caches: later steps depend only on later requests.
  void forget();
  // Since the last call. Votes are their sources'.
  JudgeCounters take_counters();

 private:
  JudgeModel(JudgeFolder folder, const config::JudgeModel& judge, const config::Options& options,
             const JudgeEnvironment& environment);

  text::Tokenizer tokenizer_;
  text::Stops stops_;
  uint64_t seed_;
  model::ModelSpec spec_;
  int64_t longest_;
  generate::GeneratorWeights weights_;
  generate::EngineOptions engine_options_;
  std::unique_ptr<generate::Engine> engine_;
  std::unordered_map<uint64_t, std::function<void(const generate::Result&)>> takers_;
  double seconds_ = 0;
  JudgeCounters reported_;
};

}  // namespace trireme::reward
