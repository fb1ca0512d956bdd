#include "trireme/learn/datasets.hpp"

#include <algorithm>
#include <numeric>
#include <span>

#include "trireme/base/error.hpp"
#include "trireme/base/log.hpp"
#include "trireme/comm/topology.hpp"
#include "trireme/learn/same_inputs.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::learn {
namespace {

void log_counts(const data::SetCounts& counts, const char* what, const data::SetOptions& options) {
  const int64_t max_tokens = options.max_tokens;
  const int64_t rows = std::accumulate(counts.rows.begin(), counts.rows.end(), int64_t{0});
  std::string line = base::text("data: ", rows, " ", what);
  if (counts.too_long > 0)
    line += base::text(", ", counts.too_long, " longer than ", max_tokens, " tokens left out");
  if (counts.empty > 0) line += base::text(", ", counts.empty, " empty ones left out");
  log::info(line);
  for (const data::RemarkLine& remark : data::describe_remarks(counts, options))
    remark.warning ? log::warning("data: " + remark.text) : log::info("data: " + remark.text);
}

const char* name_of(config::RowKind kind) {
  switch (kind) {
    case config::RowKind::example: return "examples";
    case config::RowKind::pair: return "pairs";
    case config::RowKind::labelled: break;
  }
  return "labelled answers";
}

// The ranks of a node encode together.
class NodeTeam {
 public:
  explicit NodeTeam(const comm::CommView& world)
      : node_(comm::Comm::split(world, comm::discover(world).node, world.rank(),
                                "ranks of a node that read data")),
        team_{node_->rank(), node_->size(), {}} {
    if (team_.size > 1)
      team_.gather = [this](std::string_view mine) { return node_->all_gather(mine); };
  }
  NodeTeam(const NodeTeam&) = delete;
  operator const data::EncodingTeam&() const { return team_; }

 private:
  comm::Comm node_;
  data::EncodingTeam team_;
};

struct Lengths {
  int64_t shortest = 0, longest = 0;
};
Lengths lengths_of(const data::PromptSet& prompts) {
  size_t shortest = prompts.size() > 0 ? SIZE_MAX : 0, longest = 0;
  for (int64_t row = 0; row < prompts.size(); ++row) {
    shortest = std::min(shortest, prompts[row].ids.size());
    longest = std::max(longest, prompts[row].ids.size());
  }
  return {static_cast<int64_t>(shortest), static_cast<int64_t>(longest)};
}

}  // namespace

text::SpecialTokens special_tokens_of(config::AddSpecialTokens choice) {
  switch (choice) {
    case config::AddSpecialTokens::once: return text::SpecialTokens::once;
    case config::AddSpecialTokens::always: return text::SpecialTokens::added;
    case config::AddSpecialTokens::never: break;
  }
  return text::SpecialTokens::none;
}

text::Tokenizer load_tokenizer(const config::Options& options) {
  const auto& data = options.data;
  if (!data.chat_template_kwargs.empty())
    text::check_template_variables(data.chat_template_kwargs, "data.chat_template_kwargs",
                                   ExitCode::configuration);
  if (!data.date.empty()) text::check_date(data.date, "data.date", ExitCode::configuration);
  return text::Tokenizer::load(options.tokenizer_path())
      .with_template_inputs({data.chat_template_kwargs, data.date});
}

data::SetOptions set_options(const config::Options& options, const config::Strings& files,
                             int64_t max_tokens) {
  const auto& data = options.data;
  data::SetOptions set;
  set.files.assign(files.begin(), files.end());
  set.keys = {data.prompt_key,   data.messages_key, data.label_key,
              data.response_key, data.chosen_key,   data.rejected_key,
              data.margin_key,   data.text_key,     data.completion_key};
  set.max_samples = data.max_samples;
  set.max_tokens = max_tokens;
  set.unusable =
      data.overlong_prompt == config::Overlong::stop ? data::Unusable::stop : data::Unusable::skip;
  set.prompt_form =
      data.apply_chat_template ? data::PromptForm::user_turn : data::PromptForm::plain;
  set.special_tokens = special_tokens_of(data.special_tokens);
  set.system_prompt = data.system_prompt;
  return set;
}

data::PromptSet load_prompts(const config::Options& options, const config::Strings& files,
                             const text::Tokenizer& tokenizer, const comm::CommView& world) {
  const auto wanted = set_options(options, files, options.max_len() - 1);
  const NodeTeam team(world);
  auto set = [&] {
    const trace::Region region{"read data", trace::no_argument, trace::Category::io};
    return data::PromptSet::load(wanted, tokenizer, team);
  }();
  require_same_rows(world, base::join(files), set);
  const bool held_out = !files.empty() && files == options.eval.dataset;
  if (world.rank() == 0)
    log_counts(set.counts(), held_out ? "prompts of evaluations" : "prompts", wanted);
  return set;
}

SequenceLimits sequence_limits(const config::Options& options, const data::PromptSet& prompts,
                               const std::optional<data::PromptSet>& held_out) {
  const int64_t most = options.rollout.max_new_tokens;
  const bool in_turns = options.environment.wanted();  // of `most` tokens each
  if (most == 0 || in_turns || options.actor.ptx_coef > 0) return {options.max_len(), 0};
  const Lengths trained = lengths_of(prompts);
  const int64_t prompt = std::max(trained.longest, held_out ? lengths_of(*held_out).longest : 0);
  return {std::min(prompt + most, options.max_len()), trained.shortest};
}

TrainingSet load_training(const config::Options& options, const config::Strings& files,
                          config::Command command, const text::Tokenizer& tokenizer,
                          const comm::CommView& world) {
  const auto wanted = set_options(options, files, options.max_len());
  const config::RowKind kind = config::row_kind(options, command);
  const NodeTeam team(world);
  TrainingSet set = [&] {
    const trace::Region region{"read data", trace::no_argument, trace::Category::io};
    return TrainingSet::load(kind, wanted, tokenizer, team);
  }();
  require_same_rows(world, base::join(files), set);
  if (world.rank() == 0) log_counts(set.counts(), name_of(kind), wanted);
  return set;
}

data::PromptSampler make_sampler(const config::Options& options, const std::vector<double>& weights,
                                 const data::SetCounts& counts) {
  return data::PromptSampler(
      {.sizes = counts.rows,
       .weights = weights,
       .seed = static_cast<uint64_t>(options.run.seed),
       .order = options.data.shuffle ? data::Order::shuffled : data::Order::file,
       .epoch_end = data::EpochEnd::carry_over});
}

PretrainingTexts::PretrainingTexts(const config::Options& options, const text::Tokenizer& tokenizer,
                                   const comm::CommView& world, const comm::CommView& trainers)
    : rows_(load_training(options, options.data.pretrain_dataset, config::Command::sft, tokenizer,
                          world)),
      sampler_(make_sampler(options, options.data.pretrain_probs, rows_.counts())),
      rows_per_step_(options.ptx_batch_size()),
      micro_batch_tokens_(options.train.micro_batch_tokens),
      trainers_(trainers) {}

PretrainingRows PretrainingTexts::draw(int64_t optimizer_steps) {
  return [this, drawn = sampler_.draw(optimizer_steps * rows_per_step_)](int64_t step) {
    const auto rows = std::span(drawn).subspan(static_cast<size_t>(step * rows_per_step_),
                                               static_cast<size_t>(rows_per_step_));
    return share_out(rows_, rows, trainers_, micro_batch_tokens_);
  };
}

}  // namespace trireme::learn
