#include "torch/torch.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tools/adapter_list.hpp"
#include "tools/answer_file.hpp"
#include "tools/job_record.hpp"
#include "tools/prompt_feed.hpp"
#include "tools/reading.hpp"
#include "trireme/base/log.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/comm/agree.hpp"
#include "trireme/comm/mailbox.hpp"
#include "trireme/comm/mesh.hpp"
#include "trireme/comm/progress.hpp"
#include "trireme/comm/topology.hpp"
#include "trireme/data/jsonl.hpp"
#include "trireme/generate/engine.hpp"
#include "trireme/generate/load_weights.hpp"
#include "trireme/learn/datasets.hpp"
#include "trireme/learn/file_digest.hpp"
#include "trireme/machine/compute_type.hpp"
#include "trireme/machine/device.hpp"
#include "trireme/machine/threads.hpp"
#include "trireme/model/model_files.hpp"
#include "trireme/plan/job.hpp"
#include "trireme/text/logit_bias.hpp"
#include "trireme/text/stops.hpp"
#include "trireme/tools/commands.hpp"

namespace trireme::tools {
namespace {

// Sequences that a replica has taken on, in units of its batch: as many as the scheduler looks at
// when it seeks one that can begin.
constexpr int64_t batches_ahead = 4;
constexpr double seconds_between_reports = 60;
// What may lie at rank 0, of each replica.
constexpr comm::MailLimits mail_limits{.messages = 256, .bytes = int64_t{4} << 20};

config::Options as_options(const GenerateCommand& command, const model::ModelSpec& spec) {
  config::Options options;
  options.model.dtype = command.dtype;
  options.model.max_len = spec.shape.longest();
  options.generate.tensor_parallel = command.tensor_parallel;
  return options;
}

uint64_t id_of(int64_t index, int64_t sample) {
  return request_id(index >> 20, index & ((int64_t{1} << 20) - 1), sample);
}

std::string as_text(const std::vector<std::string>& values) {
  return base::text("[", base::join(values), "]");
}

class GenerateTool {
 public:
  GenerateTool(const GenerateCommand& command, const comm::Session& session)
      : command_(command),
        adapters_(command.adapters, command.adapter_form),
        model_(adapters_.open(command.model)),
        spec_(model_.spec),
        world_(session.world()),
        tokenizer_(load_tokenizer(command.model, settled_reading())),
        topology_(comm::discover(world_)),
        device_(choose_device()),
        ranks_(make_mesh(command.tensor_parallel)),
        threads_(machine::plan_threads(as_options(command_, spec_), world_, topology_, {0, 1, 0})
                     .generator),
        weights_(spec_, config::compute_type(command_.dtype), ranks_.place(comm::Axis::tensor),
                 ranks_.size(comm::Axis::tensor),
                 device_.is_cpu() ? generate::Place::host : generate::Place::device),
        mail_(world_, "answers", mail_limits) {
    progress_.add([this] { return output_ ? collect() : (mail_.progress(), int64_t{0}); });
    tokenizer_.check_model(spec_.shape.vocab);
    stops_ = text::stops_of(tokenizer_, command_.ignore_eos, command_.stop_token_ids, command_.stop,
                            spec_.shape.vocab, "--stop-token-ids");
    biases_ =
        text::token_biases(tokenizer_, command_.logit_bias, spec_.shape.vocab, "--logit-bias");
    const auto special = learn::special_tokens_of(command_.reading.special_tokens);
    survey_ = survey_prompts(command_.input, tokenizer_, special, adapters_, spec_.shape, world_);
    feed_.emplace(command_.input, tokenizer_, special, adapters_, survey_.prompts,
                  PromptFeed::Share{ranks_.place(comm::Axis::data), ranks_.size(comm::Axis::data)});
    open_output();
    if (answered_) return;
    threads_.use();
    if (command_.weights == config::RolloutWeights::int8) weights_.add_int8(spec_);
    generate::load_weights(spec_, *model_.weights, weights_);
    weights_.quantise();
    engine_ = std::make_unique<generate::Engine>(spec_, weights_, engine_options(),
                                                 ranks_.along(comm::Axis::tensor));
  }

  // No rank waits for another replica before the end.
  ExitCode run() {
    if (answered_) return ExitCode::done;
    watch_.restart();
    for (take_prompts(); !engine_->idle(); take_prompts()) {
      progress_.until("room for answers at rank 0", [this] { return !mail_.congested(); });
      std::string lines;
      for (const auto& result : engine_->step().finished) lines += line_of(result);
      if (leads_replica() && !lines.empty()) mail_.post(0, std::move(lines));
    }
    if (leads_replica()) mail_.post(0, "");  // there is no more
    progress_.until("the other replicas' answers", [this] {
      return mail_.quiet() && (!output_ || replicas_done_ == ranks_.size(comm::Axis::data));
    });
    if (output_) {
      VALIDATE(written_ + done_.size() == done_.wanted(), ExitCode::internal, "there are ",
               written_, " answers and ", done_.size(), " of earlier runs, instead of ",
               done_.wanted());
      output_->finish();
    }
    progress_.meet(world_);
    report();
    return ExitCode::done;
  }

 private:
  // The device, and the compute type that all ranks' devices take: an earlier run's of the same
  // output where "auto" leaves it open.
  at::Device choose_device() {
    const at::Device device = machine::choose_device(command_.device, world_, topology_);
    machine::use_device(device, false, world_);
    if (command_.dtype == config::ComputeType::automatic) {
      const auto earlier = config::choice_of<config::ComputeType>(of_rank_0([&] {
        return setting_of_earlier_run(command_.output, "dtype", existing(command_.force));
      }));
      command_.dtype = earlier.value_or(command_.dtype);
    }
    command_.dtype =
        config::to_choice(machine::settle_compute_type(command_.dtype, world_, device));
    return device;
  }

  // The options with the date of all ranks.
  const ReadingOptions& settled_reading() {
    command_.reading.date = of_rank_0(
        [&] { return date_for(command_.output, command_.reading, existing(command_.force)); });
    return command_.reading;
  }

  // Collective.
  std::string of_rank_0(const std::function<std::string()>& what) const {
    std::string text;
    comm::fail_together_on_root(world_, [&] { text = what(); });
    return world_.broadcast(text, 0);
  }

  // The rank of its replica that hands answers on.
  bool leads_replica() const { return ranks_.place(comm::Axis::tensor) == 0; }

  // Every rank generates.
  comm::Mesh make_mesh(int degree) const {
    VALIDATE(degree <= world_.size() && world_.size() % degree == 0, ExitCode::configuration,
             "--tensor-parallel ", degree, " does not divide the ", world_.size(),
             " ranks: start a multiple of it");
    std::vector<int> all(static_cast<size_t>(world_.size()));
    std::iota(all.begin(), all.end(), 0);
    return comm::mesh_of_replicas(world_, topology_, all, degree, "generators");
  }

  ToolJob job() const {
    std::vector<std::string> stop_ids;
    for (const int32_t id : stops_.ids) stop_ids.push_back(base::text(id));
    ToolJob job{{"model", learn::digest_of_model(command_.model)},
                {"prompts", base::text(survey_.prompts, ", digest ", survey_.digest)},
                {"n", base::text(command_.n)},
                {"max-new-tokens", base::text(command_.max_new_tokens)},
                {"min-new-tokens", base::text(command_.min_new_tokens)},
                {"temperature", exact_text(command_.temperature)},
                {"top-p", exact_text(command_.top_p)},
                {"top-k", base::text(command_.top_k)},
                {"seed", base::text(command_.seed)},
                {"stop", as_text(stops_.strings)},
                {"stop-token-ids", as_text(stop_ids)},
                {"logit-bias", as_text(command_.logit_bias)},
                {"dtype", std::string(config::to_string(command_.dtype))},
                {"weights", std::string(config::to_string(command_.weights))},
                {"log-probs", command_.log_probs ? "yes" : "no"}};
    if (command_.min_p > 0) job.emplace_back("min-p", exact_text(command_.min_p));
    if (command_.repetition_penalty != 1)
      job.emplace_back("repetition-penalty", exact_text(command_.repetition_penalty));
    adapters_.add_to(job);
    if (tokenizer_.template_asks_for_date()) job.emplace_back("date", command_.reading.date);
    return job;
  }

  void open_output() {
    done_ = AnswerSet(survey_.prompts, command_.n);
    comm::fail_together_on_root(world_, [this] {
      const Existing there = existing(command_.force);
      answered_ = is_done(command_.output, job(), there);
      if (!answered_) output_.emplace(command_.output, job(), done_, there);
    });
    answered_ = world_.broadcast_value(answered_, 0);
    done_ = world_.broadcast_value(done_, 0);
  }

  generate::EngineOptions engine_options() const {
    world_.barrier();  // the weights of all ranks are there: KV caches take the rest
    generate::EngineOptions options;
    options.threads = threads_.count;
    options.cpus = threads_.cpus;
    options.backend = generate::backend_kind(command_.backend);
    options.max_batch = command_.max_batch;
    options.speculation_tokens = command_.speculation_tokens;
    const int64_t longest =
        std::min(survey_.longest + command_.max_new_tokens, spec_.shape.longest());
    const int64_t element_bytes = config::bytes_per_element(config::compute_type(command_.dtype));
    options.kv_bytes = plan::kv_cache_bytes(
        {0.5, 0}, plan::kv_bytes_per_token(spec_.shape, command_.tensor_parallel, element_bytes),
        options.max_batch, longest,
        machine::free_memory(device_) /
            std::ssize(machine::ranks_on_device(world_, topology_, device_)));
    return options;
  }

  // Keeps the engine busy, on all ranks of the replica alike.
  void take_prompts() {
    while (engine_->unfinished() < batches_ahead * command_.max_batch) {
      const auto prompt = feed_->next(done_);
      if (!prompt) return;
      for (int64_t sample = 0; sample < command_.n; ++sample) {
        if (!done_.has(prompt->index, sample)) submit(*prompt, sample);
      }
    }
  }

  void submit(const PromptFeed::Prompt& prompt, int64_t sample) {
    generate::Request request;
    request.id = id_of(prompt.index, sample);
    request.prompt = prompt.ids;
    request.adapter = prompt.adapter;
    request.sampling = {
        .temperature = command_.temperature,
        .top_p = command_.top_p,
        .top_k = command_.top_k,
        .min_p = command_.min_p,
        .repetition_penalty = command_.repetition_penalty,
        .max_new_tokens = std::min(command_.max_new_tokens,
                                   spec_.shape.longest() - static_cast<int64_t>(prompt.ids.size())),
        .min_new_tokens = command_.min_new_tokens,
        .stop_ids = stops_.ids,
        .logit_bias = biases_,
        .seed = command_.seed};
    request.stop = text::stop_string_predicate(tokenizer_, stops_.strings);
    place_of_.emplace(request.id, std::pair(prompt.index, sample));
    engine_->submit(std::move(request));
  }

  std::string line_of(const generate::Result& result) {
    const auto place = place_of_.extract(result.id).mapped();
    data::JsonObject line;
    line.add("index", place.first).add("sample", place.second);
    line.add("text", tokenizer_.decode(result.output_ids, text::Skip::special));
    line.add("output_ids", std::span<const int32_t>(result.output_ids));
    line.add("finish_reason", to_string(result.finish_reason));
    if (command_.log_probs) line.add("log_probs", std::span<const float>(result.log_probs));
    return line.str() + "\n";
  }

  // Answers of the replicas, rank 0's own among them; how many letters.
  int64_t collect() {
    int64_t letters = 0;
    for (; const auto letter = mail_.take(); ++letters) {
      if (letter->bytes.empty()) {
        ++replicas_done_;
      } else {
        write(letter->bytes);
      }
    }
    return letters;
  }

  void write(const std::string& lines) {
    output_->write(lines);
    written_ += std::count(lines.begin(), lines.end(), '\n');
    if (since_report_.seconds() < seconds_between_reports) return;
    since_report_.restart();
    log::info(base::text(written_ + done_.size(), " of ", done_.wanted(), " answers after ",
                         base::fixed(watch_.seconds(), 0), " s"));
  }

  void report() const {
    const generate::EngineCounters& mine = engine_->counters();
    const auto of_replicas = [&](int64_t value) {
      return world_.sum(leads_replica() ? value : int64_t{0});
    };
    const int64_t tokens = of_replicas(mine.generated_tokens),
                  computed = of_replicas(mine.prefill_tokens),
                  shared = of_replicas(mine.shared_tokens);
    const int64_t proposed = of_replicas(mine.proposed_tokens),
                  accepted = of_replicas(mine.accepted_tokens);
    const int64_t decoded = of_replicas(mine.decode_tokens) - accepted,
                  places = of_replicas(mine.decode_steps * command_.max_batch);
    if (world_.rank() != 0) return;
    const double seconds = std::max(1e-9, watch_.seconds());
    log::info(base::text(
        survey_.prompts, " prompts, ", done_.wanted(), " answers",
        done_.size() > 0 ? base::text(" (", done_.size(), " of them by earlier runs)") : "", ", ",
        tokens, " tokens in ", base::fixed(seconds, 1),
        " s: ", base::fixed(static_cast<double>(tokens) / seconds, 1), " tokens/s; prompt tokens: ",
        computed, " computed, ", shared, " shared; batch of ", command_.max_batch, ": ",
        base::fixed(
            100 * static_cast<double>(decoded) / static_cast<double>(std::max<int64_t>(places, 1)),
            0),
        " % full",
        command_.speculation_tokens > 0
            ? base::text("; ", accepted, " of ", proposed, " guessed tokens accepted")
            : ""));
  }

  GenerateCommand command_;
  AdapterList adapters_;
  model::AdaptedModel model_;
  model::ModelSpec spec_;
  comm::CommView world_;
  text::Tokenizer tokenizer_;
  text::Stops stops_;
  std::vector<TokenBias> biases_;
  comm::NodeTopology topology_;
  at::Device device_;
  comm::Mesh ranks_;  // data: replicas; tensor: the ranks of one
  machine::Threads threads_;
  generate::GeneratorWeights weights_;
  comm::ByteMailbox mail_;  // lines of answers to rank 0; an empty message is a replica's last
  comm::Progress progress_;
  std::unique_ptr<generate::Engine> engine_;
  PromptSurvey survey_;
  std::optional<PromptFeed> feed_;
  AnswerSet done_;                                                      // before this run
  std::optional<AnswerFile> output_;                                    // on rank 0
  bool answered_ = false;                                               // all, by an earlier run
  std::unordered_map<uint64_t, std::pair<int64_t, int64_t>> place_of_;  // of unfinished requests
  base::Stopwatch watch_, since_report_;
  int64_t written_ = 0;
  int replicas_done_ = 0;
};

}  // namespace

ExitCode run_generate(const GenerateCommand& command, const comm::Session& session) {
  const at::NoGradGuard no_grad;
  log::open({.console = session.world().rank() == 0, .main_file = {}, .rank_file = {}});
  comm::fail_together_on_root(session.world(), [&] {
    InputPaths inputs = AdapterList(command.adapters, command.adapter_form).folders();
    inputs.insert(inputs.end(), {command.input, command.model});
    check_output_file(command.output, inputs, Existing::replaced);
  });
  return GenerateTool(command, session).run();
}

}  // namespace trireme::tools
