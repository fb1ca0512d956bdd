// Judges against what transformers, jinja2 and Python's regex make of a tiny model's judgements
// (tests/gold/judge); votes; questions; scores in texts.
#include "torch/torch.hpp"

#include "trireme/reward/judge.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>

#include "reward/judgement.hpp"
#include "support/source_folder.hpp"
#include "support/text_files.hpp"
#include "trireme/config/reward_sources.hpp"
#include "unit/reward/support.hpp"

namespace trireme::test {
namespace {

using nlohmann::json;
using reward::Request;

std::filesystem::path gold() { return source_folder() / "tests" / "gold" / "judge"; }

const json& cases() {
  static const json read = json::parse(read_text(gold() / "cases.json"));
  return read;
}

std::vector<Request> gold_requests() {
  std::vector<Request> out;
  for (const json& one : cases().at("requests")) {
    Request request;
    request.id = request_id(3, std::ssize(out) / 4, std::ssize(out) % 4);
    request.prompt = one.at("prompt");
    request.response = one.at("response");
    request.label = one.at("label");
    request.extra = one.at("extra").dump();
    if (one.at("finish_reason") == "length") request.finish_reason = FinishReason::length;
    for (const json& message : one.at("messages"))
      request.messages.push_back({message.at("role"), message.at("content"), ""});
    out.push_back(request);
  }
  return out;
}

config::RewardSource judge_of(const json& source) {
  config::RewardSource out;
  out.kind = config::RewardKind::judge;
  out.path = (gold() / "model").string();
  out.prompt_template = source.at("prompt_template");
  out.system = source.value("system", "");
  out.score_pattern = source.at("score_pattern");
  if (source.value("score_match", "last") == "first") out.score_match = config::ScoreMatch::first;
  out.score_words = source.value("score_words", config::Strings{});
  if (source.contains("score_range"))
    out.score_range = config::Range{source["score_range"][0], source["score_range"][1]};
  out.no_score = source.at("no_score");
  out.max_new_tokens = cases().at("max_new_tokens");
  return out;
}

config::Options deck(std::vector<config::RewardSource> sources) {
  config::Options options;
  options.run.seed = 11;
  options.model.dtype = config::ComputeType::fp32;
  options.data.max_len = 200;
  options.reward.source = std::move(sources);
  return options;
}

reward::JudgeEnvironment environment(config::GenerateBackend backend = {}) {
  config::GenerateOptions generate;
  generate.backend = backend;
  reward::JudgeEnvironment out;
  out.engine = generate::engine_options(generate, 1, {});
  out.leads = false;
  return out;
}

// The model without its chat template.
std::string bare_model(const TemporaryFolder& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(gold() / "model"))
    std::filesystem::copy(entry.path(), folder.path() / entry.path().filename());
  json config = json::parse(read_text(gold() / "model" / "tokenizer_config.json"));
  config.erase("chat_template");
  std::filesystem::remove(folder.path() / "tokenizer_config.json");
  folder.write("tokenizer_config.json", config.dump());
  return folder.path().string();
}

std::vector<float> wanted_of(const json& one) {
  std::vector<float> out;
  for (const json& row : one.at("rows")) {
    const json& score = row.at("score");
    out.push_back(score.is_null() ? one.at("source").at("no_score").get<float>()
                                  : static_cast<float>(score.get<double>()));
  }
  return out;
}

// All judges of the file in one deck, two of which share a model with the first.
TEST(Judge, ScoresAreThoseOfTransformers) {
  const TemporaryFolder folder;
  const std::string bare = bare_model(folder);
  std::vector<config::RewardSource> sources;
  for (const json& one : cases().at("sources")) {
    sources.push_back(judge_of(one.at("source")));
    if (!one.at("chat_template").get<bool>()) sources.back().path = bare;
  }
  const config::Options options = deck(sources);
  EXPECT_EQ(config::judge_models(options).size(), 2u);
  for (const auto backend : {config::GenerateBackend::fused, config::GenerateBackend::torch}) {
    const auto judges = reward::make_judges(options, environment(backend));
    const std::vector<Request> requests = gold_requests();
    for (const auto& judge : judges) judge->ask(std::span(requests).first(5));
    for (size_t i = 0; i < judges.size(); ++i) {
      const json& one = cases().at("sources")[i];
      const reward::Scores scores = judges[i]->score(requests);
      const std::vector<float> wanted = wanted_of(one);
      ASSERT_EQ(scores.values.size(), wanted.size());
      for (size_t r = 0; r < wanted.size(); ++r) {
        EXPECT_FLOAT_EQ(scores.values[r], wanted[r]) << one.at("name") << ", request " << r;
        EXPECT_EQ(scores.metrics.at("scored_votes")[r] == 0, one.at("rows")[r]["score"].is_null());
      }
    }
    reward::JudgeCounters counters;
    for (const auto& judge : judges) counters += judge->take_judge_counters();
    EXPECT_EQ(counters.votes, std::ssize(requests) * std::ssize(judges));
    EXPECT_GT(counters.without_score, 0);
    EXPECT_GT(counters.tokens, counters.votes);
    EXPECT_GT(judges[0]->weight_bytes(), 0);
    EXPECT_EQ(judges[1]->weight_bytes(), 0) << "it is the first one's";
  }
}

TEST(Judge, QuestionsAreTheTokensOfTransformers) {
  const auto own = text::Tokenizer::load(gold() / "model");
  const TemporaryFolder folder;
  const auto bare = text::Tokenizer::load(bare_model(folder));
  const std::vector<Request> requests = gold_requests();
  for (const json& one : cases().at("sources")) {
    const bool chat = one.at("chat_template").get<bool>();
    const reward::Question question(judge_of(one.at("source")), "judge.", chat ? own : bare, "");
    for (size_t r = 0; r < requests.size(); ++r) {
      EXPECT_EQ(question.tokens(requests[r]),
                one.at("rows")[r].at("ids").get<std::vector<int32_t>>())
          << one.at("name") << ", request " << r;
    }
  }
}

// Of a sampling judge: the order of requests, of judges, and what is written together do not
// matter; votes and seeds do.
TEST(Judge, VotesAreDrawnByPromptSampleAndVote) {
  config::RewardSource source = judge_of(cases().at("sources")[2].at("source"));
  source.votes = 5;
  source.temperature = 1.5;
  std::vector<Request> requests = gold_requests();
  const auto judge_all = [&](config::Options options, size_t which, std::vector<Request> order) {
    const auto judges = reward::make_judges(options, environment());
    const auto scores = judges[which]->score(order);
    std::map<uint64_t, float> out;
    for (size_t i = 0; i < order.size(); ++i) out[order[i].id] = scores.values[i];
    return out;
  };
  const auto plain = judge_all(deck({source}), 0, requests);
  std::ranges::shuffle(requests, std::mt19937(4));
  config::RewardSource narrow = source;
  narrow.max_batch = 2;
  EXPECT_EQ(judge_all(deck({narrow}), 0, requests), plain);
  requests.resize(7);
  for (const auto& [id, score] : judge_all(deck({source, narrow}), 0, requests))
    EXPECT_EQ(score, plain.at(id)) << "beside another judge";
  config::Options other = deck({source});
  other.run.seed = 12;
  EXPECT_NE(judge_all(other, 0, gold_requests()), plain);
  const auto second = judge_all(deck({source, source}), 1, gold_requests());
  EXPECT_NE(second, plain) << "its votes are others";
}

// Where steps must depend on nothing else: asked ahead in another order, begun in that of ids.
TEST(Judge, BeginsInStepWhereBitsDependOnIt) {
  const config::Options options = deck({judge_of(cases().at("sources")[0].at("source"))});
  reward::JudgeEnvironment in_step = environment(config::GenerateBackend::torch);
  in_step.in_step = true;
  const auto judges = reward::make_judges(options, in_step);
  std::vector<Request> requests = gold_requests();
  judges[0]->ask(std::span(requests).subspan(10, 6));
  for (int i = 0; i < 50; ++i) judges[0]->poll();
  EXPECT_EQ(judges[0]->take_judge_counters().tokens, 0) << "nothing is begun";
  const std::vector<float> wanted = wanted_of(cases().at("sources")[0]);
  const auto scores = judges[0]->score(requests);
  for (size_t r = 0; r < wanted.size(); ++r) EXPECT_FLOAT_EQ(scores.values[r], wanted[r]);
}

// What transformers wrote for the same question; nothing where no samples are saved.
TEST(Judge, KeepsItsTextsWhereSamplesAreSaved) {
  const json& one = cases().at("sources")[0];
  config::Options options = deck({judge_of(one.at("source"))});
  EXPECT_TRUE(
      reward::make_judges(options, environment())[0]->score(gold_requests()).judgements.empty());
  options.rollout.save_samples = 1;
  options.reward.source[0].max_len = 180;
  std::vector<Request> requests = gold_requests();
  requests[1].response = std::string(900, 'w');
  const auto scores = reward::make_judges(options, environment())[0]->score(requests);
  ASSERT_EQ(scores.judgements.size(), requests.size());
  for (size_t r = 0; r < requests.size(); ++r) {
    const json said = json::parse(scores.judgements[r]);
    const std::string question = said.at("question");
    EXPECT_NE(question.find(requests[r].response.substr(0, 3)), std::string::npos) << question;
    if (r == 1) {
      EXPECT_TRUE(said.at("texts").empty()) << "it was too long";
    } else {
      EXPECT_EQ(said.at("texts"), json::array({one.at("rows")[r].at("text")}));
    }
  }
}

TEST(Judge, TextsOfJudgementsAreBounded) {
  const auto of = [](const std::string& question, const std::vector<std::string>& texts) {
    return json::parse(reward::judgement_json(question, texts));
  };
  EXPECT_EQ(of("", {}), json::parse(R"({"question": "", "texts": []})"));
  EXPECT_EQ(of(std::string(4096, 'q'), {"a", "b"}).at("question"), std::string(4096, 'q'));
  // Each half ends inside a character of three bytes: the cut moves to its border.
  std::string smiles;
  for (int i = 0; i < 2000; ++i) smiles += "\u263a";
  const std::string cut = of("begin" + smiles + "end", {}).at("question");
  EXPECT_LE(cut.size(), 4096u + 40);
  EXPECT_TRUE(cut.starts_with("begin\u263a") && cut.ends_with("\u263aend")) << cut;
  EXPECT_NE(cut.find("\u263a [... 1914 bytes ...] \u263a"), std::string::npos) << cut;
  const std::vector<std::string> votes(9, std::string(2048, 'v'));
  EXPECT_EQ(of("q", votes).at("texts"), json(std::vector<std::string>(4, votes[0])));
  EXPECT_EQ(of("q", votes).at("votes_left_out"), 5);
  EXPECT_EQ(of("q", {std::string(5000, 'v')}).at("texts")[0].get<std::string>().size(),
            2048u + std::string_view(" [... 2952 bytes ...] ").size());
  EXPECT_FALSE(of("q", {"\xff", "v"}).contains("votes_left_out"));
}

TEST(Judge, AQuestionThatIsTooLongHasNoScore) {
  config::RewardSource source = judge_of(cases().at("sources")[0].at("source"));
  source.max_len = 120;
  source.no_score = -3;
  const auto judges = reward::make_judges(deck({source}), environment());
  std::vector<Request> requests = gold_requests();
  requests[1].response = std::string(900, 'w');
  const auto scores = judges[0]->score(requests);
  const auto counters = judges[0]->take_judge_counters();
  EXPECT_EQ(counters.too_long, 1);
  EXPECT_EQ(counters.votes, std::ssize(requests) - 1);
  EXPECT_EQ(scores.values[1], -3);
  EXPECT_GT(std::ranges::count_if(scores.values, [](float score) { return score != -3; }), 3);
}

TEST(Judge, ARunThatStopsLeavesItsScore) {
  struct Stops : comm::LeaveWatch {
    bool leaves_inside() const override { return true; }
    job::StopReason wish() override {
      return ++asked > 1 ? job::StopReason::terminate_signal : job::StopReason::none;
    }
    void waited() override {}
    int asked = 0;
  } stops;
  comm::Progress progress(&stops);
  reward::JudgeEnvironment leaving = environment();
  leaving.progress = &progress;
  config::RewardSource slow = judge_of(cases().at("sources")[0].at("source"));
  slow.max_batch = 1;
  const auto judges = reward::make_judges(deck({slow}), leaving);
  EXPECT_TRUE(judges[0]->score(gold_requests()).left);
}

TEST(Judge, MistakesInDecksAndFolders) {
  const config::RewardSource good = judge_of(cases().at("sources")[0].at("source"));
  const auto refused = [&](ExitCode code, const std::string& part, auto change) {
    config::RewardSource source = good;
    change(source);
    expect_error(code, part, [&] { reward::check_judges(deck({source}), {}); });
  };
  EXPECT_EQ(reward::check_judges(deck({good}), {}).size(), 1u);
  refused(ExitCode::configuration, "does not show the answer",
          [](auto& source) { source.prompt_template = "{{ prompt }}"; });
  refused(ExitCode::configuration, "reward.source.0.prompt_template",
          [](auto& source) { source.prompt_template = "{{ response"; });
  refused(ExitCode::configuration, "reward.source.0.score_pattern",
          [](auto& source) { source.score_pattern = "(\\d"; });
  refused(ExitCode::configuration, "reward.source.0.chat_template_kwargs",
          [](auto& source) { source.chat_template_kwargs = "[1]"; });
  refused(ExitCode::configuration, "positions", [](auto& source) { source.max_len = 4096; });
  refused(ExitCode::bad_data, "is a reward model", [](auto& source) {
    source.path = (parity_folder() / "models" / "reward_model").string();
  });
  refused(ExitCode::input_missing, "nowhere", [](auto& source) { source.path = "nowhere"; });
}

std::optional<double> read_score(const std::string& pattern, const std::string& text,
                                 const std::vector<std::string>& words = {},
                                 std::optional<config::Range> range = {}) {
  config::RewardSource source;
  source.score_pattern = pattern;
  source.score_words = words;
  source.score_range = range;
  return reward::ScoreReader(source, "judge.").read(text);
}

TEST(Judge, ScoresInTexts) {
  const std::string number = config::RewardSource{}.score_pattern;
  EXPECT_EQ(read_score(number, "From 1 to 10 it is +7.5."), 7.5);
  EXPECT_EQ(read_score(number, "-3 of 4 "), 4);
  EXPECT_EQ(read_score(number, "none"), std::nullopt);
  EXPECT_EQ(read_score("score: *(\\S+)", "score: 1\nscore: nan"), std::nullopt);
  EXPECT_EQ(read_score("score: *(\\S+)", "score: 7/10"), std::nullopt) << "is not a number";
  EXPECT_EQ(read_score("\\b(yes|no)\\b|([A-Z]{2})", "no, but OK", {"yes=1", "No=0", "ok=0.5"}),
            0.5);
  EXPECT_EQ(read_score("(?i)[[\\(]{2}([a-z+ ]+)", "[[A ]] ((a+ ))", {"a=1", "a+=2"}), 2);
  EXPECT_EQ(read_score("\\w+", "grün GRÜN", {"Grün=4"}), 4);
  const config::Range range{1, 5};
  EXPECT_EQ(read_score(number, "4", {}, range), 0.75);
  EXPECT_EQ(read_score(number, "1", {}, range), 0);
  EXPECT_EQ(read_score(number, "6", {}, range), std::nullopt);
  EXPECT_EQ(read_score(number, "0.99", {}, range), std::nullopt);
}

TEST(Judge, JointScoresOfVotes) {
  using config::VoteRule;
  using reward::joint_score;
  EXPECT_EQ(joint_score(VoteRule::mean, {}), std::nullopt);
  EXPECT_EQ(joint_score(VoteRule::mean, {1, 2, 6}), 3);
  EXPECT_EQ(joint_score(VoteRule::median, {9, 1, 2}), 2);
  EXPECT_EQ(joint_score(VoteRule::median, {9, 1, 2, 4}), 3);
  EXPECT_EQ(joint_score(VoteRule::majority, {3, 1, 3, 2}), 3);
  EXPECT_EQ(joint_score(VoteRule::majority, {1, 0, 1, 0, 7}), 0.5) << "a tie";
}

}  // namespace
}  // namespace trireme::test
