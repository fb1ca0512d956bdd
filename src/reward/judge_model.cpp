#include "torch/torch.hpp"

#include "reward/judge_model.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "trireme/base/error.hpp"
#include "trireme/base/log.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/base/progress.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/generate/load_weights.hpp"
#include "trireme/model/adapter_files.hpp"
#include "trireme/model/spec.hpp"
#include "trireme/plan/job.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::reward {
namespace {

// How long the engine works before the rank polls its other sources; one step may take longer.
constexpr double slice_seconds = 0.005;

// Apart from the policy's draws, which have the same ids.
uint64_t seed_of_judges(int64_t run_seed) {
  const auto seed = static_cast<uint64_t>(run_seed);
  const auto bits = base::philox({0, 0, static_cast<uint32_t>(base::Stream::judge), 0},
                                 {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return uint64_t{bits[0]} << 32 | bits[1];
}

text::Tokenizer tokenizer_of(const model::ModelFolder& folder) {
  auto tokenizer = text::Tokenizer::load(model::tokenizer_folder(folder.path));
  tokenizer.check_model(folder.shape.vocab);
  return tokenizer;
}

model::ModelSpec spec_of(const model::ModelFolder& folder, const std::string& source) {
  VALIDATE(!folder.shape.score_head, ExitCode::bad_data, "reward source ", source, ": ",
           folder.path.string(),
           " is a reward model (its config.json names ...ForSequenceClassification), which writes "
           "no text: set kind = \"model\", or give a language model");
  return model::without_dropout(model::describe_and_check(folder, model::HeadKind::language));
}

model::ModelSpec with_head_type(model::ModelSpec spec, config::HeadType type) {
  spec.head_type = type;
  return spec;
}

generate::EngineOptions engine_options_of(const config::JudgeModel& judge,
                                          const config::Options& options,
                                          const config::ModelShape& shape,
                                          generate::EngineOptions engine) {
  engine.max_batch = judge.max_batch;
  engine.kv_bytes =
      plan::judge_cache_bytes(judge, shape, config::bytes_per_element(options.model.compute()));
  return engine;
}

}  // namespace

JudgeFolder::JudgeFolder(const std::string& path, const std::string& source)
    : files(model::open_model(path)),
      spec(spec_of(files, source)),
      tokenizer(tokenizer_of(files)) {}

JudgeModel::JudgeModel(const config::JudgeModel& judge, const config::Options& options,
                       const JudgeEnvironment& environment)
    : JudgeModel(
          JudgeFolder(judge.path, config::source_name(options.reward.source[judge.sources.front()],
                                                      judge.sources.front())),
          judge, options, environment) {}

JudgeModel::JudgeModel(JudgeFolder folder, const config::JudgeModel& judge,
                       const config::Options& options, const JudgeEnvironment& environment)
    : tokenizer_(std::move(folder.tokenizer)),
      stops_(text::stops_of(tokenizer_, false, {}, {}, folder.spec.shape.vocab, judge.path)),
      seed_(seed_of_judges(options.run.seed)),
      spec_(with_head_type(std::move(folder.spec), options.model.head_dtype)),
      longest_(std::min(judge.max_len, spec_.shape.longest())),
      weights_(spec_, options.model.compute(), 0, 1,
               environment.device.is_cpu() ? generate::Place::host : generate::Place::device),
      engine_options_(engine_options_of(judge, options, spec_.shape, environment.engine)) {
  generate::load_weights(spec_, *folder.files.weights, weights_);
  engine_ = std::make_unique<generate::Engine>(spec_, weights_, engine_options_);
  if (!environment.leads) return;
  std::vector<std::string> names;
  for (const size_t i : judge.sources)
    names.push_back(config::source_name(options.reward.source[i], i));
  log::info(base::text("judge ", base::join(names), ": ", judge.path, ", ", spec_.elements(),
                       " parameters on each reward rank"));
  for (const std::string& line : engine_->describe()) log::detail("judge: " + line);
}

void JudgeModel::submit(uint64_t id, std::vector<int32_t> prompt, const config::RewardSource& how,
                        std::function<void(const generate::Result&)> take) {
  generate::Request request;
  request.id = id;
  request.prompt = std::move(prompt);
  request.sampling.temperature = how.temperature;
  request.sampling.max_new_tokens = how.max_new_tokens;
  request.sampling.stop_ids = stops_.ids;
  request.sampling.seed = seed_;
  engine_->submit(std::move(request));
  takers_.emplace(id, std::move(take));
}

void JudgeModel::work() {
  if (engine_->idle()) return;
  const at::NoGradGuard no_grad;
  const trace::Region region{"judge"};
  const base::Stopwatch watch;
  do {
    base::tick();
    for (const generate::Result& result : engine_->step().finished)
      takers_.extract(result.id).mapped()(result);
  } while (!engine_->idle() && watch.seconds() < slice_seconds);
  seconds_ += watch.seconds();
}

void JudgeModel::forget() {
  if (engine_->idle()) engine_->begin_anew();
}

JudgeCounters JudgeModel::take_counters() {
  const generate::EngineCounters& counters = engine_->counters();
  JudgeCounters all;
  all.tokens = counters.generated_tokens;
  all.prompt_tokens = counters.prefill_tokens;
  all.shared_tokens = counters.shared_tokens;
  all.seconds = seconds_;
  const JudgeCounters before = std::exchange(reported_, all);
  all.tokens -= before.tokens;
  all.prompt_tokens -= before.prompt_tokens;
  all.shared_tokens -= before.shared_tokens;
  all.seconds -= before.seconds;
  return all;
}

}  // namespace trireme::reward
