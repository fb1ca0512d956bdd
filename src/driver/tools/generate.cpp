#include "torch/torch.hpp"

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "driver/compute_type.hpp"
#include "driver/device.hpp"
#include "driver/generator.hpp"
#include "driver/load_weights.hpp"
#include "driver/roles.hpp"
#include "driver/threads.hpp"
#include "driver/tools/output.hpp"
#include "trireme/base/log.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/data/jsonl.hpp"
#include "trireme/data/prompt_set.hpp"
#include "trireme/driver/commands.hpp"
#include "trireme/generate/engine.hpp"
#include "trireme/model/model_files.hpp"
#include "trireme/plan/job.hpp"

namespace trireme::driver {
namespace {

// Steps between two moments at which the replicas hand their finished lines to rank 0.
constexpr int kStepsBetweenLines = 32;

config::Options as_options(const GenerateCommand& command, const model::ModelSpec& spec) {
  config::Options options;
  options.model.dtype = command.dtype;
  options.model.max_len = spec.shape.max_positions;
  options.generate.tensor_parallel = command.tensor_parallel;
  return options;
}

uint64_t id_of(int64_t index, int64_t sample) { return request_id(index >> 20, index & ((int64_t{1} << 20) - 1), sample); }

class GenerateTool {
 public:
  GenerateTool(const GenerateCommand& command, const comm::Session& session)
      : command_(command),
        folder_(model::open_model(command.model)),
        spec_(model::describe(folder_.shape, model::HeadKind::language)),
        tokenizer_(text::Tokenizer::load(command.model)),
        inputs_(data::read_inputs(command.input)),
        roles_(make_roles(as_options(command, spec_), session.world())),
        threads_(plan_threads(as_options(command, spec_), roles_)),
        weights_(spec_, config::compute_type(command.dtype), roles_.generators.place(comm::Axis::tensor), roles_.tensor_parallel()) {
    tokenizer_.check_model(spec_.shape.vocab);
    stops_ = stops_of(tokenizer_, command_.ignore_eos, command_.stop_token_ids, command_.stop, spec_.shape.vocab,
                      "--stop-token-ids");
    model::warn_unexpected(model::check_weights(spec_, *folder_.weights), *folder_.weights);
    load_weights(spec_, *folder_.weights, weights_);
    threads_.generator.use();
    engine_ = std::make_unique<generate::Engine>(spec_, weights_, engine_options(), roles_.generators.along(comm::Axis::tensor));
  }

  ExitCode run() {
    submit();
    std::optional<OutputFile> output;
    if (roles_.world.rank() == 0) output.emplace(command_.output);
    const base::Stopwatch watch;
    for (bool working = true; working;) {
      std::string lines;
      for (int step = 0; step < kStepsBetweenLines && !engine_->idle(); ++step) {
        for (const auto& result : engine_->step().finished) lines += line_of(result);
      }
      for (const auto& part : roles_.world.gather(roles_.leads_replica() ? lines : std::string{}, 0)) output->write(part);
      working = !roles_.world.all(engine_->idle());
    }
    if (output) output->finish();
    const auto tokens = roles_.world.sum(roles_.leads_replica() ? engine_->counters().generated_tokens : int64_t{0});
    if (roles_.world.rank() == 0) {
      log::info(base::text(inputs_.size() * static_cast<size_t>(command_.n), " answers, ", tokens, " tokens, ",
                           base::fixed(static_cast<double>(tokens) / std::max(1e-9, watch.seconds()), 1), " tokens/s"));
    }
    return ExitCode::done;
  }

 private:
  generate::EngineOptions engine_options() const {
    roles_.world.barrier();  // the weights of all ranks are there: what is free now is for KV caches
    generate::EngineOptions options;
    options.threads = threads_.generator.count;
    options.cpus = threads_.generator.cpus;
    options.backend = engine_backend(command_.backend);
    int64_t longest = 0;
    for (const auto& input : inputs_) longest = std::max(longest, static_cast<int64_t>(input.encode(tokenizer_).size()));
    longest = std::min(longest + command_.max_new_tokens, spec_.shape.max_positions);
    const int64_t element_bytes = config::bytes_per_element(config::compute_type(command_.dtype));
    options.kv_bytes = plan::kv_cache_bytes({0.5, 0}, spec_.shape, command_.tensor_parallel, element_bytes, options.max_batch, longest,
                                            free_memory(at::kCPU) / count_here(ranks_on_device(roles_.world, roles_.topology, at::kCPU), roles_.map.generator));
    return options;
  }

  void submit() {
    for (size_t i = 0; i < inputs_.size(); ++i) {
      if (static_cast<int>(i) % roles_.replicas() != roles_.generators.place(comm::Axis::data)) continue;
      const auto ids = inputs_[i].encode(tokenizer_);
      VALIDATE(!ids.empty(), ExitCode::bad_data, inputs_[i].where, ": the prompt has no token");
      const int64_t room = spec_.shape.max_positions - static_cast<int64_t>(ids.size());
      VALIDATE(room > 0, ExitCode::bad_data, inputs_[i].where, ": the prompt has ", ids.size(), " tokens, the model takes ",
               spec_.shape.max_positions, ": shorten it");
      for (int64_t sample = 0; sample < command_.n; ++sample) {
        generate::Request request;
        request.id = id_of(static_cast<int64_t>(i), sample);
        request.prompt.assign(ids.begin(), ids.end());
        request.sampling = {.temperature = command_.temperature,
                            .top_p = command_.top_p,
                            .top_k = command_.top_k,
                            .max_new_tokens = std::min(command_.max_new_tokens, room),
                            .min_new_tokens = command_.min_new_tokens,
                            .stop_ids = stops_.ids,
                            .seed = command_.seed};
        request.stop = stop_string_predicate(tokenizer_, stops_.strings);
        place_of_.emplace(request.id, std::pair(static_cast<int64_t>(i), sample));
        engine_->submit(std::move(request));
      }
    }
  }

  std::string line_of(const generate::Result& result) const {
    const auto [index, sample] = place_of_.at(result.id);
    data::JsonObject line;
    line.add("index", index).add("sample", sample);
    line.add("text", tokenizer_.decode(result.output_ids, text::Skip::special));
    line.add("output_ids", std::span<const int32_t>(result.output_ids));
    line.add("finish_reason", to_string(result.finish_reason));
    if (command_.log_probs) line.add("log_probs", std::span<const float>(result.log_probs));
    return line.str() + "\n";
  }

  GenerateCommand command_;
  model::ModelFolder folder_;
  model::ModelSpec spec_;
  text::Tokenizer tokenizer_;
  std::vector<data::InputRecord> inputs_;
  Stops stops_;
  Roles roles_;
  ThreadPlan threads_;
  generate::GeneratorWeights weights_;
  std::unique_ptr<generate::Engine> engine_;
  std::unordered_map<uint64_t, std::pair<int64_t, int64_t>> place_of_;
};

}  // namespace

ExitCode run_generate(const GenerateCommand& command, const comm::Session& session) {
  const at::NoGradGuard no_grad;
  GenerateCommand settled = command;
  settled.dtype = config::to_choice(settle_compute_type(command.dtype, session.world()));
  return GenerateTool(settled, session).run();
}

}  // namespace trireme::driver
