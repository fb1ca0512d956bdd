#include "torch/torch.hpp"

#include "trireme/reward/judge.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "reward/file_rows.hpp"
#include "reward/judge_model.hpp"
#include "reward/judgement.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/log.hpp"
#include "trireme/base/text.hpp"
#include "trireme/config/reward_sources.hpp"
#include "trireme/plugin/answers.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::reward {
namespace {

std::string key_of(size_t source) { return base::text("reward.source.", source, "."); }

class JudgeSource : public Source {
 public:
  // `shares`: the model is an earlier source's, which counts its bytes. `first_vote`: the number of
  // its first vote among those of all judges on an answer.
  JudgeSource(const config::Options& options, size_t index, std::shared_ptr<JudgeModel> model,
              bool shares, uint64_t first_vote, const JudgeEnvironment& environment)
      : options_(options.reward.source[index]),
        name_(config::source_name(options_, index)),
        model_(std::move(model)),
        shares_(shares),
        longest_(std::min(config::judge_max_len(options_, options), model_->longest())),
        question_(options_, key_of(index), model_->tokenizer(), options.data.date),
        reader_(options_, key_of(index)),
        first_vote_(first_vote),
        keeps_texts_(options.rollout.save_samples != 0),
        in_step_(environment.in_step),
        leads_(environment.leads),
        progress_(environment.progress ? *environment.progress : own_progress_) {}

  const std::string& name() const override { return name_; }
  bool takes_time() const override { return true; }
  void poll() override { model_->work(); }
  int64_t weight_bytes() const override { return shares_ ? 0 : model_->weight_bytes(); }
  int64_t cache_bytes() const override { return shares_ ? 0 : model_->cache_bytes(); }

  void ask(std::span<const Request> requests) override {
    for (const Request& request : requests) {
      const auto [place, fresh] = judged_.emplace(request.id, Judged{});
      VALIDATE(fresh, ExitCode::internal, "judge ", name_, ": two requests have one id");
      Judged& one = place->second;
      one.where = described(request);
      one.prompt = question_.tokens(request);
      one.votes.resize(static_cast<size_t>(options_.votes));
      if (!in_step_) begin(request.id, one);
    }
  }

  Scores score(std::span<const Request> requests) override {
    const trace::Region region{"reward judge", trace::no_argument, trace::Category::wait};
    if (requests.empty()) return {};
    if (progress_.some(comm::May::leave) == comm::Then::leave) return {.left = true};
    for (const Request& request : requests) {
      if (!judged_.contains(request.id)) ask({&request, 1});
    }
    if (in_step_) begin_together(requests);
    size_t next = 0;
    const comm::Then then = progress_.until(
        "judgements",
        [&] {
          poll();
          while (next < requests.size() && judged_.at(requests[next].id).open == 0) ++next;
          return next == requests.size();
        },
        comm::May::leave);
    if (then == comm::Then::leave) return {.left = true};
    Scores scores;
    for (const Request& request : requests) add(judged_.extract(request.id).mapped(), scores);
    return scores;
  }

  JudgeCounters take_judge_counters() override {
    JudgeCounters counters = std::exchange(counters_, {});
    counters += model_->take_counters();  // of its judges the first one's call has all
    return counters;
  }

 private:
  struct Judged {
    std::string where;
    std::vector<int32_t> prompt = {};  // until it begins
    std::vector<std::optional<double>> votes = {};
    int64_t open = -1;  // votes that are missing; -1: it has not begun
    int64_t tokens = 0;
    std::string question = {};            // where texts are kept
    std::vector<std::string> texts = {};  // of the votes
  };

  void begin(uint64_t id, Judged& one) {
    const std::vector<int32_t> prompt = std::exchange(one.prompt, {});
    if (keeps_texts_) one.question = model_->tokenizer().decode(prompt, text::Skip::nothing);
    if (std::ssize(prompt) + options_.max_new_tokens > longest_) {
      one.open = 0;
      ++counters_.too_long;
      say_too_long(one, std::ssize(prompt));
      return;
    }
    one.open = options_.votes;
    if (keeps_texts_) one.texts.resize(one.votes.size());
    for (size_t vote = 0; vote < one.votes.size(); ++vote) {
      model_->submit(id + first_vote_ + vote, prompt, options_,
                     [this, id, vote](const generate::Result& result) { take(id, vote, result); });
    }
  }

  void begin_together(std::span<const Request> requests) {
    std::vector<uint64_t> ids;
    for (const Request& request : requests) {
      if (judged_.at(request.id).open < 0) ids.push_back(request.id);
    }
    std::ranges::sort(ids);
    model_->forget();
    for (const uint64_t id : ids) begin(id, judged_.at(id));
  }

  void take(uint64_t id, size_t vote, const generate::Result& result) {
    Judged& one = judged_.at(id);
    const std::string text = model_->tokenizer().decode(result.output_ids, text::Skip::special);
    one.votes[vote] = reader_.read(text);
    if (keeps_texts_) one.texts[vote] = text;
    one.tokens += std::ssize(result.output_ids);
    --one.open;
    ++counters_.votes;
    if (!one.votes[vote]) ++counters_.without_score;
    say(one, one.votes[vote], text, result.finish_reason);
  }

  void add(const Judged& one, Scores& scores) const {
    std::vector<double> votes;
    for (const auto& vote : one.votes) {
      if (vote) votes.push_back(*vote);
    }
    const auto scored = static_cast<float>(votes.size());
    scores.values.push_back(static_cast<float>(
        joint_score(options_.vote_rule, std::move(votes)).value_or(options_.no_score)));
    scores.metrics["scored_votes"].push_back(scored);
    scores.metrics["tokens"].push_back(static_cast<float>(one.tokens));
    if (keeps_texts_) scores.judgements.push_back(judgement_json(one.question, one.texts));
  }

  // The first judgement, and the first one without a score.
  void say(const Judged& one, const std::optional<double>& score, const std::string& text,
           FinishReason reason) {
    bool& said = score ? said_score_ : said_none_;
    if (!leads_ || std::exchange(said, true)) return;
    if (score) {
      log::info(base::text("judge ", name_, " gives ", *score,
                           " to the first answer that it has read (", one.where,
                           "): ", plugin::excerpt(text)));
      return;
    }
    log::warning(
        base::text("judge ", name_, " has no score for ", one.where,
                   " (reward.source.score_pattern finds none",
                   reason == FinishReason::length ? "; its text was cut at max_new_tokens" : "",
                   "), which counts as no_score = ", options_.no_score,
                   " where no other vote has one: ", plugin::excerpt(text)));
  }

  void say_too_long(const Judged& one, int64_t tokens) {
    if (!leads_ || std::exchange(said_long_, true)) return;
    log::warning(base::text(
        "judge ", name_, ": the question about ", one.where, " has ", tokens,
        " tokens, which with max_new_tokens = ", options_.max_new_tokens, " are more than ",
        longest_, " (max_len): it has no score and counts as no_score = ", options_.no_score));
  }

  config::RewardSource options_;
  std::string name_;
  std::shared_ptr<JudgeModel> model_;
  bool shares_;
  int64_t longest_;
  Question question_;
  ScoreReader reader_;
  uint64_t first_vote_;
  bool keeps_texts_;
  bool in_step_;
  bool leads_;
  comm::Progress own_progress_;
  comm::Progress& progress_;
  std::map<uint64_t, Judged> judged_;
  JudgeCounters counters_;
  bool said_score_ = false, said_none_ = false, said_long_ = false;
};

}  // namespace

std::vector<std::unique_ptr<Source>> make_judges(const config::Options& options,
                                                 const JudgeEnvironment& environment) {
  const auto& sources = options.reward.source;
  std::vector<uint64_t> first_vote(sources.size());
  for (size_t i = 1; i < sources.size(); ++i) {
    const bool judges = sources[i - 1].kind == config::RewardKind::judge;
    first_vote[i] = first_vote[i - 1] + (judges ? static_cast<uint64_t>(sources[i - 1].votes) : 0);
  }
  std::vector<std::unique_ptr<Source>> out(sources.size());
  for (const config::JudgeModel& judge : config::judge_models(options)) {
    const auto model = std::make_shared<JudgeModel>(judge, options, environment);
    for (const size_t i : judge.sources)
      out[i] = std::make_unique<JudgeSource>(options, i, model, i != judge.sources.front(),
                                             first_vote[i], environment);
  }
  return out;
}

std::vector<std::string> check_judges(const config::Options& options, Sets sets) {
  std::vector<std::string> lines;
  const std::vector<FileRows> files = files_of(sets);
  for (const config::JudgeModel& judge : config::judge_models(options)) {
    const std::string first =
        config::source_name(options.reward.source[judge.sources.front()], judge.sources.front());
    const JudgeFolder folder(judge.path, first);
    for (const size_t i : judge.sources) {
      const config::RewardSource& source = options.reward.source[i];
      const ScoreReader reader(source, key_of(i));
      const Question question(source, key_of(i), folder.tokenizer, options.data.date);
      const int64_t longest =
          std::min(config::judge_max_len(source, options), folder.spec.shape.longest());
      VALIDATE(source.max_len <= folder.spec.shape.longest(), ExitCode::configuration, key_of(i),
               "max_len = ", source.max_len, " is more than the ", folder.spec.shape.longest(),
               " positions of ", judge.path, ": set it to them or less");
      int64_t most = 0;
      for (const FileRows& file : files) {
        const auto tokens = std::ssize(question.tokens(request_for(*file.set, file.first)));
        VALIDATE(tokens + source.max_new_tokens <= longest, ExitCode::configuration, key_of(i),
                 "max_len: the question about an empty answer to ", file.set->where(file.first),
                 " has ", tokens, " tokens, which with max_new_tokens = ", source.max_new_tokens,
                 " are more than ", longest, ": set max_len greater or max_new_tokens less");
        most = std::max(most, static_cast<int64_t>(tokens));
      }
      lines.push_back(base::text("judge ", config::source_name(source, i), ": ", judge.path,
                                 ", questions about empty answers have up to ", most, " tokens of ",
                                 longest, ", its text up to ", source.max_new_tokens));
    }
  }
  return lines;
}

}  // namespace trireme::reward
