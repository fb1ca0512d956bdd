// Guessed tokens change no bit: every text is compared with that of an engine which takes one token
// a step.
#include "torch/torch.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "generate/prompt_lookup.hpp"
#include "generate/sampler.hpp"
#include "tiny_model.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/config/options.hpp"

namespace trireme::test {
namespace {

using config::DType;
using generate::Engine;
using generate::EngineOptions;
using generate::look_up_continuation;
using generate::Request;
using Ids = std::vector<int32_t>;

TEST(PromptLookup, GoesOnAsTheTextDidLastTime) {
  EXPECT_EQ(look_up_continuation(Ids{1, 2, 3, 8, 9, 1, 2, 3, 5, 6, 7, 1, 2, 3}, 2), (Ids{5, 6}));
  EXPECT_EQ(look_up_continuation(Ids{1, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3}, 1), Ids{4})
      << "three equal tokens say more than two";
  EXPECT_EQ(look_up_continuation(Ids{4, 2, 3, 5, 6, 1, 2, 3}, 2), (Ids{5, 6}))
      << "two where there are not three";
  EXPECT_EQ(look_up_continuation(Ids{2, 3, 7, 2, 3}, 5), (Ids{7, 2, 3, 7, 2})) << "a loop goes on";
  EXPECT_EQ(look_up_continuation(Ids{6, 6, 6}, 3), (Ids{6, 6, 6}));
  EXPECT_EQ(look_up_continuation(Ids{1, 2, 3, 1, 2, 3}, 0), Ids{});
  EXPECT_EQ(look_up_continuation(Ids{1, 2, 3, 4, 3}, 4), Ids{}) << "one equal token says nothing";
  EXPECT_EQ(look_up_continuation(Ids{5, 5}, 4), Ids{});
  EXPECT_EQ(look_up_continuation(Ids{}, 4), Ids{});
}

EngineOptions options_of(int64_t speculation, int64_t batch = 4) {
  EngineOptions o;
  o.kv_bytes = int64_t{8} << 20;
  o.max_batch = batch;
  o.threads = 1;
  o.speculation_tokens = speculation;
  return o;
}

// Biases leave two tokens, so what stood there before comes again often, but not always.
Request two_token_request(uint64_t id, int64_t prompt, int64_t new_tokens) {
  Request r;
  r.id = id;
  for (int64_t i = 0; i < prompt; ++i)
    r.prompt.push_back(
        base::uniform(5, base::Stream::test, id, static_cast<uint32_t>(i)) < 0.5f ? 40 : 50);
  r.sampling.max_new_tokens = new_tokens;
  r.sampling.logit_bias = {{40, 60}, {50, 60}};
  r.sampling.seed = 3;
  return r;
}

// Every way to draw and to end. Predicates count, so each run needs requests of its own.
std::vector<Request> looping_requests() {
  std::vector<Request> out;
  for (uint64_t i = 0; i < 9; ++i) {
    Request r =
        two_token_request(i, 7 + 6 * static_cast<int64_t>(i), 40 + 9 * static_cast<int64_t>(i % 4));
    r.sampling.temperature = i % 3 == 0 ? 0 : 1;
    if (i == 2) r.sampling.top_p = 0.9;
    if (i == 4) r.sampling.top_k = 30;
    if (i == 5) r.sampling.stop_ids = {40};
    if (i >= 4)
      r.sampling.min_new_tokens = 33;  // until then 50 alone is left where 40 is a stop token
    if (i == 7) r.stop = [seen = 0](int32_t) mutable { return ++seen % 35 == 0; };
    if (i == 8) r.prompt = tiny_prompt(60, 3), r.sampling.logit_bias.clear();
    out.push_back(std::move(r));
  }
  return out;
}

class Speculation : public testing::TestWithParam<DType> {};

TEST_P(Speculation, TextsAndLogProbsHaveTheSameBits) {
  const auto spec = tiny_spec();
  const auto weights = tiny_weights(spec, GetParam());
  Engine reference(spec, weights, options_of(0));
  const Results want = run_all(reference, looping_requests());
  EXPECT_EQ(want.at(5).finish_reason, FinishReason::stop);
  EXPECT_EQ(want.at(7).finish_reason, FinishReason::stop_string);
  EXPECT_EQ(reference.counters().proposed_tokens, 0);
  const auto check = [&](const char* what, const EngineOptions& options) {
    SCOPED_TRACE(what);
    Engine engine(spec, weights, options);
    expect_same(want, run_all(engine, looping_requests()));
    const generate::EngineCounters& c = engine.counters();
    EXPECT_GT(c.accepted_tokens, 0);
    EXPECT_GT(c.proposed_tokens, c.accepted_tokens) << "or wrong guesses are not tested";
    if (options.max_batch <= config::speculating_sequences) {
      EXPECT_LE(c.decode_tokens - c.accepted_tokens + c.proposed_tokens, 8 * c.decode_steps)
          << "rows of a step";
    }
    EXPECT_EQ(c.pages_used, 0);
    if (c.preemptions == 0) { EXPECT_EQ(c.decode_tokens, reference.counters().decode_tokens); }
    return c;
  };
  for (const int64_t guesses : {1, 2, 7, 32})
    EXPECT_LT(check("guesses", options_of(guesses)).steps, reference.counters().steps);
  for (const int64_t batch : {1, 2, 3, 9}) check("batch limit", options_of(5, batch));
  EngineOptions o = options_of(5);
  o.threads = 2;
  check("threads", o);
  o = options_of(5);
  o.prefix_sharing = o.sample_sharing = false;
  check("nothing shared", o);
  o = options_of(5);
  o.page_size = 64;
  check("page size", o);
  o = options_of(5);
  o.prefill_chunk_tokens = 7;
  check("prefill chunk", o);
  o = options_of(5);
  o.kv_bytes = 9 * 2 * 3 * 16 * 32 * (GetParam() == DType::f32 ? 4 : 2);  // nine pages
  EXPECT_GT(check("few pages", o).preemptions, 0);
}

TEST_P(Speculation, GuessesFitIntoThePagesOfTheirTexts) {
  const auto spec = tiny_spec();
  const auto weights = tiny_weights(spec, GetParam());
  const auto requests = [] {
    return std::vector{two_token_request(1, 20, 45), two_token_request(2, 25, 40)};
  };
  Engine reference(spec, weights, options_of(0));
  const Results want = run_all(reference, requests());
  EngineOptions o = options_of(32);
  o.prefix_sharing = false;
  o.kv_bytes = 8 * 2 * 3 * 16 * 32 *
               (GetParam() == DType::f32 ? 4 : 2);  // four pages for each of 64 computed tokens
  Engine engine(spec, weights, o);
  expect_same(want, run_all(engine, requests()));
  EXPECT_EQ(engine.counters().preemptions, 0);
  EXPECT_EQ(engine.counters().pages_peak, 8);
  EXPECT_GT(engine.counters().accepted_tokens, 0);
}

TEST_P(Speculation, PagesOfAcceptedTokensAreFoundAgain) {
  const auto spec = tiny_spec();
  const auto weights = tiny_weights(spec, GetParam());
  Engine engine(spec, weights, options_of(7)), fresh(spec, weights, options_of(0));
  const Request first = two_token_request(1, 20, 60);
  const Results answer = run_all(engine, {first});
  ASSERT_GT(engine.counters().accepted_tokens, 0);
  Request second = two_token_request(2, 0, 30);
  second.prompt = first.prompt;
  second.prompt.insert(second.prompt.end(), answer.at(1).output_ids.begin(),
                       answer.at(1).output_ids.end());
  expect_same(run_all(fresh, {second}), run_all(engine, {second}));
  EXPECT_EQ(engine.counters().shared_tokens, 64) << "four pages of 79 computed tokens";
}

// New weights come between two steps, the text goes on in another engine: as without guesses, from
// the token that was reached.
TEST_P(Speculation, GoesOnWithOtherWeightsAndInAnotherEngine) {
  const auto spec = tiny_spec();
  const auto other = tiny_weights(spec, GetParam(), 0, 1, 2);
  int64_t reached = 0;
  const auto write = [&](int64_t speculation, int64_t at_least) {
    auto weights = tiny_weights(spec, GetParam());
    Engine first(spec, weights, options_of(speculation));
    const Request request = two_token_request(1, 20, 80);
    first.submit(request);
    while (first.standing().empty() || std::ssize(first.standing()[0].output_ids) < at_least)
      first.step();
    reached = std::ssize(first.standing()[0].output_ids);
    const auto storage = weights.storage();
    for (size_t p = 0; p < storage.size(); ++p) {
      std::memcpy(
          storage[p], other.data(p),
          static_cast<size_t>(weights.block(p).elements() * config::bytes_per_element(GetParam())));
    }
    weights.set_version(1);
    for (int step = 0; step < 4; ++step) first.step();
    Request rest = request;
    rest.begun = first.standing().at(0);
    Engine second(spec, weights, options_of(speculation));
    return run_all(second, {rest});
  };
  const Results guessed = write(7, 11);
  const Results want = write(0, reached);
  expect_same(want, guessed);
  EXPECT_EQ(guessed.at(1).versions, want.at(1).versions);
  EXPECT_EQ(std::ranges::count(guessed.at(1).versions, 0), reached);
}

INSTANTIATE_TEST_SUITE_P(Types, Speculation, testing::Values(DType::f32, DType::bf16),
                         [](const auto& tested) {
                           return std::string(config::to_string(tested.param));
                         });

TEST(SpeculationEnds, AtTheLastPositionOfTheModel) {
  const auto spec = tiny_spec();
  const auto weights = tiny_weights(spec, DType::f32);
  Engine plain(spec, weights, options_of(0)), guessing(spec, weights, options_of(32));
  const Results want = run_all(plain, {two_token_request(1, 640, 100)});
  expect_same(want, run_all(guessing, {two_token_request(1, 640, 100)}));
  EXPECT_EQ(want.at(1).output_ids.size(), 60u);  // the model has 700 positions
  EXPECT_GT(guessing.counters().accepted_tokens, 0);
}

TEST(SpeculationIsRefused, WhereRowsDependOnEachOther) {
  const auto spec = tiny_spec();
  const auto weights = tiny_weights(spec, DType::f32);
  EngineOptions o = options_of(4);
  o.backend = generate::BackendKind::torch;
  EXPECT_THROW(Engine(spec, weights, o), UserError);
  EXPECT_THROW(Engine(spec, weights, options_of(-1)), UserError);
}

// What follows a wrong guess may be anything: only a token that is kept is refused.
TEST(SpeculationDraws, LogitsThatAreNotFiniteDoNotDisturbOthers) {
  constexpr int64_t vocab = 9001;
  std::vector<float> good(static_cast<size_t>(vocab));
  base::normals(7, 3, 0, good);
  const std::vector<float> nothing(static_cast<size_t>(vocab), std::nanf("")),
      infinite(static_cast<size_t>(vocab), std::numeric_limits<float>::infinity());
  generate::ThreadTeam team(1);
  generate::Sampler sampler(vocab, 0, team, comm::CommView{});
  std::vector<generate::SamplingParams> ways(5);
  ways[1].temperature = 0;
  ways[2].top_p = 0.7;
  ways[3].top_k = 40;
  ways[4].logit_bias = {{17, 4}};
  for (const generate::SamplingParams& way : ways) {
    const generate::DrawRequest request{0, nullptr, &way, 3, 9, {}};
    const auto row = [](const std::vector<float>& logits) {
      return kernels::LogitsRow{kernels::ElementType::f32, logits.data(), vocab};
    };
    const auto want = sampler.draw(std::vector{request}, std::vector{row(good)});
    const auto got = sampler.draw(std::vector{request, request, request},
                                  std::vector{row(nothing), row(good), row(infinite)});
    EXPECT_EQ(got[1].id, want[0].id);
    EXPECT_EQ(got[1].log_prob, want[0].log_prob);
    for (const size_t bad : {0, 2}) EXPECT_FALSE(std::isfinite(got[bad].log_prob)) << bad;
  }
}

}  // namespace
}  // namespace trireme::test
