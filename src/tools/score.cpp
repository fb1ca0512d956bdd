#include "torch/torch.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tools/job_record.hpp"
#include "tools/reading.hpp"
#include "trireme/base/log.hpp"
#include "trireme/comm/agree.hpp"
#include "trireme/comm/topology.hpp"
#include "trireme/data/jsonl.hpp"
#include "trireme/data/score_input.hpp"
#include "trireme/learn/datasets.hpp"
#include "trireme/learn/file_digest.hpp"
#include "trireme/learn/scoring.hpp"
#include "trireme/machine/compute_type.hpp"
#include "trireme/machine/device.hpp"
#include "trireme/machine/threads.hpp"
#include "trireme/model/adapter_files.hpp"
#include "trireme/model/model_files.hpp"
#include "trireme/reward/model_source.hpp"
#include "trireme/tools/commands.hpp"

namespace trireme::tools {
namespace {

// Records that all ranks together score between two writes.
constexpr size_t records_per_rank = 64;

// A model that diverged, or a damaged one: JSON has no such numbers, and nobody should use them.
void require_finite(std::span<const float> values, const std::filesystem::path& model,
                    const std::string& where, const char* what) {
  for (size_t i = 0; i < values.size(); ++i) {
    VALIDATE(std::isfinite(values[i]), ExitCode::bad_data, where, ": a ", what, " is not finite (",
             double{values[i]}, ", number ", i + 1, " of the line; the weights of ", model.string(),
             " are damaged, or its training diverged): use another checkpoint");
  }
}

class ScoreTool {
 public:
  ScoreTool(const ScoreCommand& command, ToolJob job, const comm::Session& session)
      : command_(command),
        job_(std::move(job)),
        world_(session.world()),
        tokenizer_(load_tokenizer(command.model, command.reading)),
        inputs_(data::read_score_inputs(command.input)) {
    config::Options options;
    options.model.path = command.model.string();
    options.model.dtype = command.dtype;
    const auto topology = comm::discover(world_);
    machine::plan_threads(options, world_, topology, {1, 0, 0}).trainer.use();
    device_ = machine::choose_device(command.device, world_, topology);
    machine::use_device(device_, false, world_);
    const auto type = machine::settle_compute_type(command.dtype, world_, device_);
    const auto [spec, weights] = model::open_adapted(
        command.model, command.adapter, command.adapter_form, model::HeadKind::language);
    tokenizer_.check_model(spec.shape.vocab);
    shape_ = spec.shape;
    model_ = std::make_unique<zero::ShardedModel>(
        model::frozen(spec), world_, std::nullopt, device_,
        zero::ShardedModelOptions{.name = "model", .compute = type});
    model_->load(
        [&, &spec = spec, &weights = weights](size_t p, const base::Block& block, float* out) {
          model::load_parameter(spec, p, block, *weights, 0, out);
        });
    if (!command.reward_model.empty()) {
      config::RewardSource source;
      source.kind = config::RewardKind::model;
      source.path = command.reward_model.string();
      reward_ = reward::make_model(source, "reward",
                                   {.ranks = world_,
                                    .device = device_,
                                    .dtype = type,
                                    .max_len = 0,
                                    .batch_tokens = command.micro_batch_tokens,
                                    .policy_tokenizer = tokenizer_});
    }
  }

  ExitCode run() {
    std::optional<OutputFile> output;
    comm::fail_together_on_root(world_,
                                [&] { output.emplace(command_.output, existing(command_.force)); });
    const size_t chunk = records_per_rank * static_cast<size_t>(world_.size());
    for (size_t first = 0; first < inputs_.size(); first += chunk) {
      const auto lines = score(first, std::min(first + chunk, inputs_.size()));
      const auto parts = world_.gather(lines, 0);
      for (const auto& part : parts) output->write(part);
    }
    if (output) output->finish(job_);
    return ExitCode::done;
  }

 private:
  // Contiguous shares, so that the gathered parts are in input order.
  std::string score(size_t first, size_t last) {
    const size_t count = last - first;
    const auto ranks = static_cast<size_t>(world_.size());
    const auto me = static_cast<size_t>(world_.rank());
    const size_t begin = first + count * me / ranks;
    const size_t end = first + count * (me + 1) / ranks;
    Samples samples;
    std::vector<reward::Request> requests;
    comm::fail_together(world_, [&] {
      for (size_t i = begin; i < end; ++i) add(i, samples, requests);
    });
    const at::Tensor log_probs = learn::action_log_probs(
        *model_, samples, {world_, command_.micro_batch_tokens, device_}, command_.temperature);
    reward::Scores rewards;
    if (reward_) rewards = reward_->score(requests);
    std::string lines;
    comm::fail_together(world_, [&] { lines = lines_of(samples, log_probs, rewards, begin); });
    return lines;
  }

  std::string lines_of(const Samples& samples, const at::Tensor& log_probs,
                       const reward::Scores& rewards, size_t begin) const {
    std::string lines;
    const float* values = log_probs.const_data_ptr<float>();
    for (int64_t s = 0; s < samples.size(); ++s) {
      const std::string& where = inputs_[begin + static_cast<size_t>(s)].where;
      const int64_t skipped = samples.prompt_len[static_cast<size_t>(s)];
      const std::span<const float> of_text(values + samples.begin(s) + skipped,
                                           static_cast<size_t>(samples.length(s) - skipped));
      require_finite(of_text, command_.model, where, "log-probability");
      if (reward_) {
        require_finite({&rewards.values[static_cast<size_t>(s)], 1}, command_.reward_model, where,
                       "reward");
      }
      data::JsonObject line;
      line.add("index", static_cast<int64_t>(begin) + s);
      line.add("log_probs", of_text);
      if (reward_) line.add("reward", double{rewards.values[static_cast<size_t>(s)]});
      lines += line.str() + "\n";
    }
    return lines;
  }

  void add(size_t i, Samples& samples, std::vector<reward::Request>& requests) const {
    const data::ScoreInput& input = inputs_[i];
    data::ScoredTokens tokens =
        input.tokens(tokenizer_, learn::special_tokens_of(command_.reading.special_tokens));
    const auto length = static_cast<int64_t>(tokens.ids.size());
    VALIDATE(length > 0, ExitCode::bad_data, input.where, ": the text has no token");
    VALIDATE(tokens.first > 0, ExitCode::bad_data, input.where,
             ": the prompt has no token, so the response follows nothing: score it as `text`");
    VALIDATE(!input.answer || tokens.first < length, ExitCode::bad_data, input.where,
             ": the response has no token");
    VALIDATE(length <= shape_.longest(), ExitCode::bad_data, input.where, ": the text has ", length,
             " tokens, the model takes ", shape_.longest(), ": shorten it");
    require_rows(tokens.ids, shape_.vocab, input.where);
    samples.add({.id = i,
                 .prompt_row = static_cast<int64_t>(i),
                 .ids = tokens.ids,
                 .action_ranges = {{tokens.first, length}}});
    if (reward_) requests.push_back(request_of(i, std::move(tokens)));
  }

  reward::Request request_of(size_t i, data::ScoredTokens tokens) const {
    const data::ScoreInput& input = inputs_[i];
    reward::Request request;
    request.id = i;
    request.where = input.where;
    request.prompt = std::move(tokens.prompt);
    request.prompt_len = tokens.prompt_len;
    request.ids = std::move(tokens.ids);
    request.encoded = !input.ids;
    request.messages = input.messages;
    request.variables = input.variables;
    if (input.answer) {
      request.response = text::content_text(*input.answer);
      request.answer_fields = input.answer->extra;
    }
    // A text without an answer gets no end token.
    request.finish_reason = input.answer ? input.finish_reason : FinishReason::length;
    return request;
  }

  ScoreCommand command_;
  ToolJob job_;
  comm::CommView world_;
  at::Device device_ = at::kCPU;
  text::Tokenizer tokenizer_;
  std::vector<data::ScoreInput> inputs_;
  config::ModelShape shape_;
  std::unique_ptr<zero::ShardedModel> model_;
  std::unique_ptr<reward::Source> reward_;
};

ToolJob job_of(const ScoreCommand& command) {
  const auto digest = [](const std::filesystem::path& model) {
    return base::text(learn::digest_of_model(model), " ", learn::digest_of_descriptions(model));
  };
  ToolJob job{{"model", digest(command.model)},
              {"reward-model", command.reward_model.empty() ? "" : digest(command.reward_model)},
              {"input", learn::digest_of_file(command.input)},
              {"temperature", exact_text(command.temperature)},
              {"dtype", std::string(config::to_string(command.dtype))}};
  if (!command.adapter.empty()) {
    job.emplace_back("adapter", digest(command.adapter));
    job.emplace_back("adapter-as", std::string(config::to_string(command.adapter_form)));
  }
  add_reading(job, command.reading);
  return job;
}

}  // namespace

ExitCode run_score(const ScoreCommand& asked, const comm::Session& session) {
  const comm::CommView world = session.world();
  log::open({.console = world.rank() == 0, .main_file = {}, .rank_file = {}});
  ScoreCommand command = asked;
  const Existing there = existing(command.force);
  const InputPaths inputs{command.input, command.model, command.adapter, command.reward_model};
  ToolJob job;  // on rank 0
  bool done = false;
  comm::fail_together_on_root(world, [&] {
    check_output_file(command.output, inputs, Existing::replaced);
    command.reading.date = date_for(command.output, command.reading, there);
    job = job_of(command);
    done = is_done(command.output, job, there);
    if (!done) check_output_file(command.output, inputs, there);
  });
  if (world.broadcast_value(done, 0)) return ExitCode::done;
  command.reading.date = world.broadcast(command.reading.date, 0);
  return ScoreTool(command, std::move(job), session).run();
}

}  // namespace trireme::tools
