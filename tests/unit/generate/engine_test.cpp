#include "torch/torch.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "generate/sampler.hpp"
#include "tiny_model.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/isa.hpp"
#include "trireme/base/philox.hpp"

namespace trireme::test {
namespace {

using config::DType;
using generate::BackendKind;
using generate::Engine;
using generate::EngineOptions;
using generate::Request;
using generate::Result;

constexpr auto MiB = int64_t{1} << 20;

EngineOptions small_options() {
  EngineOptions o;
  o.kv_bytes = 8 * MiB;
  o.max_batch = 8;
  o.threads = 1;
  return o;
}

Request make_request(uint64_t id, std::vector<int32_t> prompt, double temperature,
                     int64_t new_tokens) {
  Request r;
  r.id = id;
  r.prompt = std::move(prompt);
  r.sampling.temperature = temperature;
  r.sampling.max_new_tokens = new_tokens;
  r.sampling.seed = 5;
  return r;
}

// Twelve sampled requests: four prompts with a common beginning of 40 tokens, three samples each,
// of different lengths.
std::vector<Request> mixed_requests() {
  std::vector<Request> out;
  const std::vector<int32_t> common = tiny_prompt(40, 9);
  for (uint64_t p = 0; p < 4; ++p) {
    std::vector<int32_t> prompt = common;
    const auto own = tiny_prompt(5 + 13 * static_cast<int64_t>(p), 100 + p);
    prompt.insert(prompt.end(), own.begin(), own.end());
    for (uint64_t s = 0; s < 3; ++s) {
      Request r = make_request(p * 10 + s, prompt, 0.5 + 0.25 * static_cast<double>(s),
                               20 + 7 * static_cast<int64_t>(p));
      if (s == 1) r.sampling.top_p = 0.8;
      if (s == 2) r.sampling.top_k = 20;
      out.push_back(std::move(r));
    }
  }
  return out;
}

class EngineByType : public testing::TestWithParam<DType> {};

TEST_P(EngineByType, TextsAreTheSameBitsHoweverTheyAreScheduled) {
  const auto spec = tiny_spec();
  const auto weights = tiny_weights(spec, GetParam());
  Engine reference(spec, weights, small_options());
  const Results want = run_all(reference, mixed_requests());
  ASSERT_EQ(want.size(), 12u);
  const auto check = [&](const char* what, const EngineOptions& options) {
    SCOPED_TRACE(what);
    Engine engine(spec, weights, options);
    expect_same(want, run_all(engine, mixed_requests()));
    return engine.counters();
  };
  for (const int64_t batch : {1, 2, 3, 5, 12}) {
    EngineOptions o = small_options();
    o.max_batch = batch;
    check("batch limit", o);
  }
  for (const int64_t chunk : {1, 7, 16, 33, 1000}) {
    EngineOptions o = small_options();
    o.prefill_chunk_tokens = chunk;
    check("prefill chunk", o);
  }
  for (const bool prefix : {false, true}) {
    for (const bool samples : {false, true}) {
      EngineOptions o = small_options();
      o.prefix_sharing = prefix;
      o.sample_sharing = samples;
      const auto counters = check("sharing", o);
      EXPECT_EQ(counters.shared_tokens > 0, prefix || samples);
    }
  }
  for (const int threads : {2, 3}) {
    EngineOptions o = small_options();
    o.threads = threads;
    check("threads", o);
  }
  EngineOptions o = small_options();
  o.page_size = 64;
  check("page size", o);
}

// Long texts, whose keys go to several threads, beside short ones; rows that every thread does for
// itself, rows that are dealt out, and so many that, on matrix units, a thread does all products of
// its own.
TEST_P(EngineByType, ThreadsShareTheKeysOfLongTextsBitForBit) {
  const auto spec = tiny_spec();
  const auto weights = tiny_weights(spec, GetParam());
  const auto requests = [] {
    std::vector<Request> out{make_request(0, tiny_prompt(600, 1), 1, 24),
                             make_request(1, tiny_prompt(505, 2), 1, 20)};
    for (uint64_t i = 2; i < 7; ++i) out.push_back(make_request(i, tiny_prompt(4, i), 1, 6));
    return out;
  };
  Engine reference(spec, weights, small_options());
  const Results want = run_all(reference, requests());
  EXPECT_EQ(reference.counters().attention_parts, 0);
  EXPECT_EQ(reference.counters().whole_row_steps, 0);
  for (const auto& [threads, batch] : {std::pair(2, 1), std::pair(2, 8), std::pair(3, 8)}) {
    EngineOptions o = small_options();
    o.threads = threads;
    o.max_batch = batch;
    Engine engine(spec, weights, o);
    expect_same(want, run_all(engine, requests()));
    EXPECT_GT(engine.counters().attention_parts, 0)
        << threads << " threads, " << batch << " texts at a time";
    EXPECT_EQ(engine.counters().whole_row_steps > 0,
              GetParam() == DType::bf16 && base::has_matrix_units())
        << threads << " threads";
  }
}

// Requests that are cancelled leave the others' bits and no page; begun again they have the text
// that they would have had.
TEST_P(EngineByType, WhatIsCancelledCanBeginAgain) {
  const auto spec = tiny_spec();
  const auto weights = tiny_weights(spec, GetParam());
  Engine reference(spec, weights, small_options());
  const Results want = run_all(reference, mixed_requests());
  for (const auto& [batch, steps] :
       std::vector<std::pair<int64_t, int>>{{8, 0}, {8, 1}, {3, 2}, {8, 12}, {2, 30}}) {
    SCOPED_TRACE(testing::Message() << "batch limit " << batch << ", " << steps << " steps");
    EngineOptions options = small_options();
    options.max_batch = batch;
    options.prefill_chunk_tokens = 16;  // the first steps are at prompts
    Engine engine(spec, weights, options);
    for (Request& request : mixed_requests()) engine.submit(std::move(request));
    Results got;
    const auto keep = [&](std::vector<Result> results) {
      for (Result& result : results) got.emplace(result.id, std::move(result));
    };
    for (int step = 0; step < steps; ++step) keep(engine.step().finished);
    // Two of three samples of a prompt, all of another one.
    std::vector<uint64_t> ids;
    int64_t written = 0;
    for (const Result& result : engine.standing()) {
      if (result.id == 10 || result.id == 12 || result.id / 10 == 2) {
        ids.push_back(result.id);
        written += std::ssize(result.output_ids);
      }
    }
    std::vector<uint64_t> begun;
    for (const Result& result : engine.standing()) {
      if (std::ssize(result.output_ids) >= 2) begun.push_back(result.id);
    }
    std::vector<uint64_t> longer = engine.longer(2);
    std::ranges::sort(longer);
    EXPECT_EQ(longer, begun);
    EXPECT_EQ(engine.cancel(ids), written);
    keep(engine.step().finished);
    for (Request& request : mixed_requests()) {
      if (std::ranges::find(ids, request.id) != ids.end()) engine.submit(std::move(request));
    }
    while (!engine.idle()) keep(engine.step().finished);
    expect_same(want, got);
    EXPECT_EQ(engine.counters().pages_used, 0);
  }
}

// Left after any number of tokens, and taken on by another engine: what a checkpoint does with
// sequences that are not finished.
TEST_P(EngineByType, WhatWasBegunGoesOnWithTheSameBits) {
  const auto spec = tiny_spec();
  const auto weights = tiny_weights(spec, GetParam());
  Engine reference(spec, weights, small_options());
  const Results want = run_all(reference, mixed_requests());
  for (const int steps : {0, 1, 5, 18}) {
    SCOPED_TRACE(testing::Message() << steps << " steps");
    Engine first(spec, weights, small_options());
    Results got;
    int heard = 0;  // tokens by the predicate of request 12
    auto requests = mixed_requests();
    for (Request& request : requests) {
      if (request.id == 12) request.stop = [&](int32_t) { return ++heard, false; };
      first.submit(request);
    }
    for (int step = 0; step < steps; ++step) {
      for (Result& result : first.step().finished) got.emplace(result.id, std::move(result));
    }
    heard = 0;
    Engine second(spec, weights, small_options());
    for (Result& standing : first.standing()) {
      const auto request = std::ranges::find(requests, standing.id, &Request::id);
      request->begun = std::move(standing);
      second.submit(*request);
    }
    EXPECT_EQ(second.unfinished() + std::ssize(got), 12);
    second.run({}, [&](Result result) { got.emplace(result.id, std::move(result)); });
    ASSERT_EQ(got.size(), want.size());
    for (const auto& [id, result] : want) {
      EXPECT_EQ(got.at(id).output_ids, result.output_ids) << id;
      EXPECT_EQ(got.at(id).log_probs, result.log_probs) << id;
      EXPECT_EQ(got.at(id).sample_log_probs, result.sample_log_probs) << id;
      EXPECT_EQ(got.at(id).versions, result.versions) << id;
      EXPECT_EQ(got.at(id).finish_reason, result.finish_reason) << id;
    }
    EXPECT_EQ(heard, std::ssize(want.at(12).output_ids))
        << "the predicate sees every token once more";
  }
}

// What a deterministic restart needs: an engine that begins anew writes the same tokens in the same
// steps as one that was given its sequences just now, however short of slots and pages both are.
TEST(Engine, BeginsAnewAsAnotherWould) {
  const auto spec = tiny_spec();
  const auto weights = tiny_weights(spec, DType::f32);
  for (const int steps : {0, 1, 3, 9, 20}) {
    for (const int64_t batch : {3, 5}) {
      SCOPED_TRACE(testing::Message() << steps << " steps, " << batch << " slots");
      EngineOptions options = small_options();
      options.max_batch = batch;
      options.prefill_chunk_tokens = 48;
      Engine first(spec, weights, options), second(spec, weights, options);
      auto requests = mixed_requests();
      for (const Request& request : requests) first.submit(request);
      for (int step = 0; step < steps; ++step) first.step();
      const auto queue = first.queue();
      EXPECT_EQ(std::ssize(queue), first.unfinished());
      for (Result& standing : first.standing()) {  // in another order
        const auto request = std::ranges::find(requests, standing.id, &Request::id);
        request->begun = std::move(standing);
        second.submit(*request);
      }
      second.arrange(queue);
      EXPECT_EQ(second.queue(), queue);
      first.begin_anew();
      EXPECT_EQ(first.queue(), queue);
      while (!first.idle()) {
        const auto one = first.step().tokens, other = second.step().tokens;
        ASSERT_EQ(one.size(), other.size());
        for (size_t i = 0; i < one.size(); ++i) {
          EXPECT_EQ(one[i].request, other[i].request);
          EXPECT_EQ(one[i].id, other[i].id);
        }
        EXPECT_EQ(first.queue(), second.queue());
      }
      EXPECT_TRUE(second.idle());
    }
  }
}

// The lowest ids of the vocabulary of 500 end an answer: half of all draws would.
std::vector<Request> requests_with_many_ends(int64_t min_new_tokens) {
  std::vector<Request> out = mixed_requests();
  for (Request& request : out) {
    request.sampling.min_new_tokens = min_new_tokens;
    for (int32_t id = 0; id < 250; ++id) request.sampling.stop_ids.push_back(id);
    if (request.id % 2 == 0) request.sampling.temperature = 0;
  }
  return out;
}

// No stop id comes before min_new_tokens, and log-probs remain those of the full softmax, bit for
// bit.
TEST_P(EngineByType, AnswersEndNoSoonerThanAfterTheirLeastTokens) {
  const auto spec = tiny_spec();
  const auto weights = tiny_weights(spec, GetParam());
  Engine engine(spec, weights, small_options());
  int64_t ended_at_once = 0;
  for (const auto& [id, result] : run_all(engine, requests_with_many_ends(0)))
    ended_at_once += result.output_ids.size() < 6;
  EXPECT_GT(ended_at_once, 6) << "or this says nothing";
  for (const int64_t least : {1, 6, 1000}) {
    const auto requests = requests_with_many_ends(least);
    const Results results = run_all(engine, requests);
    for (const Request& request : requests) {
      const Result& result = results.at(request.id);
      const auto is_end = [](int32_t id) { return id < 250; };
      const auto first_end =
          std::find_if(result.output_ids.begin(), result.output_ids.end(), is_end) -
          result.output_ids.begin();
      EXPECT_GE(first_end, std::min(least, request.sampling.max_new_tokens))
          << "request " << request.id;
      if (first_end < std::ssize(result.output_ids)) {
        EXPECT_EQ(first_end + 1, std::ssize(result.output_ids));
        EXPECT_EQ(result.finish_reason, FinishReason::stop);
      }
      std::vector<int32_t> ids = request.prompt;
      ids.insert(ids.end(), result.output_ids.begin(), result.output_ids.end());
      const double temperature =
          request.sampling.temperature == 0 ? 1 : request.sampling.temperature;
      const auto full = full_log_probs(spec, weights, ids, temperature);
      for (size_t i = 0; i < result.log_probs.size(); ++i) {
        EXPECT_NEAR(result.log_probs[i], full[request.prompt.size() - 1 + i], 2e-5f)
            << "request " << request.id << " token " << i;
      }
    }
  }
}

// Draws from one row of logits.
class RowDraws {
 public:
  explicit RowDraws(int64_t vocab) : vocab_(vocab), sampler_(vocab, 0, team_, {}) {}
  generate::Drawn operator()(const std::vector<float>& row, const generate::SamplingParams& params,
                             uint32_t position, std::span<const int32_t> without = {}) const {
    const generate::DrawRequest request{0, nullptr, &params, 3, position, without};
    const kernels::LogitsRow of_row{kernels::ElementType::f32, row.data(), vocab_};
    return sampler_.draw({&request, 1}, {&of_row, 1}).front();
  }

 private:
  int64_t vocab_;
  mutable generate::ThreadTeam team_{1};
  mutable generate::Sampler sampler_;
};

std::vector<generate::SamplingParams> ways_to_draw() {
  std::vector<generate::SamplingParams> ways(4);
  ways[1].temperature = 0;
  ways[2].top_p = 0.7;
  ways[3].top_k = 40;
  return ways;
}

// Among the ids that may come the draw is the one that it would be if the others had no
// probability.
TEST(MinNewTokens, KeepsTheDistributionOfTheRest) {
  constexpr int64_t vocab = 9001;
  std::vector<float> logits(static_cast<size_t>(vocab));
  base::normals(7, 3, 0, logits);
  const std::vector<int32_t> forbidden{0, 17, 4096, 9000, 12345};
  logits[17] = 30;  // all but certain
  std::vector<float> masked = logits;
  for (const int32_t id : forbidden) {
    if (id < vocab) masked[static_cast<size_t>(id)] = -1e30f;
  }
  const RowDraws draw(vocab);
  for (const generate::SamplingParams& params : ways_to_draw()) {
    for (uint32_t position = 0; position < 300; ++position) {
      const auto got = draw(logits, params, position, forbidden);
      EXPECT_EQ(got.id, draw(masked, params, position, {}).id) << position;
      EXPECT_LT(got.log_prob, -20) << "under the softmax that has the likely one in it";
    }
  }
}

// Biased draws are those from logits with the biases in them; log-probs are those of the logits
// without.
TEST(LogitBias, ChangesWhatIsDrawnAndNotItsLogProb) {
  constexpr int64_t vocab = 9001;
  std::vector<float> logits(static_cast<size_t>(vocab));
  base::normals(7, 3, 0, logits);
  const std::vector<TokenBias> biases{{0, 7.5f}, {17, 6.25f}, {4096, 7}, {9000, -100}};
  logits[9000] = 30;  // would always come
  std::vector<float> sums = logits;
  for (const TokenBias& bias : biases) sums[static_cast<size_t>(bias.id)] += bias.bias;
  double full = 0;
  for (const float z : logits) full += std::exp(static_cast<double>(z) - 30);
  const RowDraws draw(vocab);
  for (const generate::SamplingParams& params : ways_to_draw()) {
    generate::SamplingParams biased = params;
    biased.logit_bias = biases;
    int biased_ids = 0;
    for (uint32_t position = 0; position < 300; ++position) {
      const auto got = draw(logits, biased, position);
      const auto want = draw(sums, params, position);
      EXPECT_EQ(got.id, want.id) << position;
      EXPECT_EQ(got.sample_log_prob, want.sample_log_prob);
      EXPECT_NEAR(got.log_prob,
                  static_cast<double>(logits[static_cast<size_t>(got.id)]) - 30 - std::log(full),
                  1e-4);
      EXPECT_NE(got.id, 9000);
      biased_ids += got.id == 0 || got.id == 17 || got.id == 4096;
    }
    EXPECT_GT(biased_ids, 30) << "they are drawn more often than once in a hundred times";
  }
}

TEST_P(EngineByType, ShortOfPagesItPreemptsAndGivesTheSameTexts) {
  const auto spec = tiny_spec();
  const auto weights = tiny_weights(spec, GetParam());
  Engine reference(spec, weights, small_options());
  const Results want = run_all(reference, mixed_requests());
  EXPECT_EQ(reference.counters().preemptions, 0);
  // 2 layers x 3 heads x 16 tokens x (16 + 16) elements
  const int64_t page = 2 * 3 * 16 * 32 * (GetParam() == DType::f32 ? 4 : 2);
  for (const int64_t pages : {9, 12, 20}) {
    for (const bool sharing : {true, false}) {
      EngineOptions o = small_options();
      o.kv_bytes = pages * page;
      o.prefix_sharing = o.sample_sharing = sharing;
      Engine engine(spec, weights, o);
      ASSERT_EQ(engine.counters().pages_total, pages);
      expect_same(want, run_all(engine, mixed_requests()));
      if (pages == 12 && !sharing) { EXPECT_GT(engine.counters().preemptions, 0); }
      EXPECT_LE(engine.counters().pages_peak, pages);
      EXPECT_EQ(engine.counters().pages_used, 0);
    }
  }
}

TEST_P(EngineByType, CountsTheRoomInItsPagesThatHoldsNoToken) {
  const auto spec = tiny_spec();
  const auto weights = tiny_weights(spec, GetParam());
  Engine engine(spec, weights, small_options());
  run_all(engine, {make_request(0, tiny_prompt(10, 1), 0, 6)});
  EXPECT_EQ(engine.counters().page_room, 6 * 16) << "a page of 16 tokens in six steps";
  EXPECT_EQ(engine.counters().page_room_unused, 6 + 5 + 4 + 3 + 2 + 1)
      << "ten of the prompt, and one more in each step";
}

TEST_P(EngineByType, LogProbsAreThoseOfAFullForwardPass) {
  const auto spec = tiny_spec(9001);  // three chunks of the vocabulary
  const auto weights = tiny_weights(spec, GetParam());
  Engine engine(spec, weights, small_options());
  std::vector<Request> requests;
  for (uint64_t i = 0; i < 6; ++i) {
    requests.push_back(make_request(i, tiny_prompt(10 + 11 * static_cast<int64_t>(i), i, 9001),
                                    i % 2 ? 1.0 : 0.7, 30));
  }
  const auto asked = requests;
  const Results results = run_all(engine, requests);
  // bf16: attention adds in another order than LibTorch's, and its result is rounded.
  const double tolerance = GetParam() == DType::f32 ? 1e-5 : 0.15;
  for (const Request& r : asked) {
    const Result& result = results.at(r.id);
    std::vector<int32_t> ids = r.prompt;
    ids.insert(ids.end(), result.output_ids.begin(), result.output_ids.end());
    const auto want = full_log_probs(spec, weights, ids, r.sampling.temperature);
    for (size_t i = 0; i < result.log_probs.size(); ++i) {
      EXPECT_NEAR(result.log_probs[i], want[r.prompt.size() - 1 + i], tolerance)
          << "request " << r.id << " token " << i;
    }
    EXPECT_TRUE(result.sample_log_probs.empty());
  }
}

INSTANTIATE_TEST_SUITE_P(Types, EngineByType, testing::Values(DType::f32, DType::bf16),
                         [](const auto& tested) {
                           return std::string(config::to_string(tested.param));
                         });

TEST(Engine, GreedyTokensAreThoseOfRecomputingEverything) {
  for (const bool tied : {false, true}) {
    const auto spec = tiny_spec(500, tied, !tied);
    const auto weights = tiny_weights(spec, DType::f32);
    Engine engine(spec, weights, small_options());
    const auto prompt = tiny_prompt(19, 3);
    const Results results = run_all(engine, {make_request(1, prompt, 0, 24)});
    std::vector<int32_t> ids = prompt;
    for (int i = 0; i < 24; ++i) {
      const at::Tensor last =
          full_logits(spec, weights, ids).select(0, static_cast<int64_t>(ids.size()) - 1);
      ids.push_back(static_cast<int32_t>(at::argmax(last).item<int64_t>()));
    }
    EXPECT_EQ(results.at(1).output_ids, std::vector<int32_t>(ids.begin() + 19, ids.end()));
  }
}

TEST(Engine, LibTorchBackendGivesTheSameTokens) {
  const auto spec = tiny_spec();
  const auto weights = tiny_weights(spec, DType::f32);
  Engine fused(spec, weights, small_options());
  EngineOptions o = small_options();
  o.backend = BackendKind::torch;
  o.prefill_chunk_tokens = 23;
  Engine torch(spec, weights, o);
  const Results a = run_all(fused, mixed_requests()), b = run_all(torch, mixed_requests());
  for (const auto& [id, result] : a) {
    EXPECT_EQ(result.output_ids, b.at(id).output_ids) << "request " << id;
    for (size_t i = 0; i < result.log_probs.size(); ++i)
      EXPECT_NEAR(result.log_probs[i], b.at(id).log_probs[i], 3e-5);
  }
}

TEST(Engine, SamplesOfOnePromptShareItsPagesAndCopyTheLastOne) {
  const auto spec = tiny_spec();
  const auto weights = tiny_weights(spec, DType::f32);
  EngineOptions o = small_options();
  o.prefix_sharing = false;
  Engine engine(spec, weights, o);
  const auto prompt = tiny_prompt(37, 4);  // two full pages and five tokens
  std::vector<Request> requests;
  for (uint64_t s = 0; s < 6; ++s) requests.push_back(make_request(s, prompt, 1, 8));
  const Results results = run_all(engine, requests);
  const auto& c = engine.counters();
  EXPECT_EQ(c.prefill_tokens, 37);  // computed once
  EXPECT_EQ(c.shared_tokens, 5 * 37);
  EXPECT_EQ(c.pages_copied, 5);  // every sample but the last to write
  EXPECT_EQ(c.decode_tokens, 6 * 7);
  EXPECT_EQ(c.generated_tokens, 6 * 8);
  EXPECT_LE(c.pages_peak, 2 + 6 + 1);
  EXPECT_NE(results.at(0).output_ids, results.at(1).output_ids);
}

TEST(Engine, ACommonPrefixIsComputedOnce) {
  const auto spec = tiny_spec();
  const auto weights = tiny_weights(spec, DType::f32);
  Engine engine(spec, weights, small_options());
  const auto common = tiny_prompt(64, 5);
  std::vector<Request> requests;
  for (uint64_t p = 0; p < 5; ++p) {
    auto prompt = common;
    prompt.push_back(static_cast<int32_t>(p));
    requests.push_back(make_request(p, prompt, 1, 4));
  }
  run_all(engine, requests);
  EXPECT_EQ(engine.counters().prefill_tokens, 64 + 5);
  EXPECT_EQ(engine.counters().shared_tokens, 4 * 64);
  // Later requests still find it.
  run_all(engine, {make_request(9, common, 1, 4)});
  EXPECT_EQ(engine.counters().prefill_tokens,
            64 + 5 + 16);  // the last page is computed again: its logits are needed
}

TEST(Engine, OtherWeightsDropKeysAndPrefixes) {
  const auto spec = tiny_spec();
  auto weights = tiny_weights(spec, DType::f32);
  Engine engine(spec, weights, small_options());
  const auto prompt = tiny_prompt(40, 6);
  const Results before = run_all(engine, {make_request(1, prompt, 0, 10)});
  const auto other = tiny_weights(spec, DType::f32, 0, 1, 2);
  auto storage = weights.storage();
  for (size_t p = 0; p < storage.size(); ++p) {
    std::memcpy(storage[p], other.data(p),
                static_cast<size_t>(weights.block(p).elements()) * sizeof(float));
  }
  weights.set_version(7);
  const Results after = run_all(engine, {make_request(1, prompt, 0, 10)});
  Engine fresh(spec, other, small_options());
  const Results want = run_all(fresh, {make_request(1, prompt, 0, 10)});
  EXPECT_EQ(after.at(1).output_ids, want.at(1).output_ids);
  EXPECT_NE(after.at(1).output_ids, before.at(1).output_ids);
  EXPECT_EQ(engine.counters().shared_tokens, 0);
  EXPECT_EQ(after.at(1).versions, std::vector<int32_t>(10, 7));
}

TEST(Engine, NewWeightsInTheMiddleOfATextRecomputeItsKeys) {
  const auto spec = tiny_spec();
  auto weights = tiny_weights(spec, DType::f32);
  Engine engine(spec, weights, small_options());
  engine.submit(make_request(1, tiny_prompt(20, 6), 0, 12));
  for (int i = 0; i < 5; ++i) engine.step();
  weights.set_version(
      1);  // the same weights under a new number: the text must not change, its versions do
  Results got;
  while (!engine.idle()) {
    for (auto& r : engine.step().finished) got[r.id] = std::move(r);
  }
  Engine plain(spec, weights, small_options());
  const Results want = run_all(plain, {make_request(1, tiny_prompt(20, 6), 0, 12)});
  expect_same(want, got);
  EXPECT_EQ(got.at(1).versions, (std::vector<int32_t>{0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1}));
}

TEST(Engine, OldKeysAreReadOnByTheirOwnSequencesOnly) {
  const auto spec = tiny_spec();
  const auto old_weights = tiny_weights(spec, DType::f32),
             new_weights = tiny_weights(spec, DType::f32, 0, 1, 2);
  struct Run {
    Results results;
    generate::EngineCounters counters;
  };
  const auto run = [&](bool keep, const generate::GeneratorWeights& after,
                       BackendKind backend = BackendKind::fused) {
    EngineOptions o = small_options();
    o.keep_old_keys = keep;
    o.backend = backend;
    auto weights = tiny_weights(spec, DType::f32);
    Engine engine(spec, weights, o);
    engine.submit(make_request(1, tiny_prompt(20, 6), 0, 40));
    for (int i = 0; i < 5; ++i) engine.step();
    const auto storage = weights.storage();
    for (size_t p = 0; p < storage.size(); ++p)
      std::memcpy(storage[p], after.data(p), after.tensor(p).nbytes());
    weights.set_version(1);
    engine.submit(make_request(2, tiny_prompt(20, 6), 0, 12));  // the same prompt
    Results results = run_all(engine, {});
    return Run{std::move(results), engine.counters()};
  };
  const Run same = run(true, old_weights), again = run(false, old_weights);
  expect_same(same.results, again.results);
  EXPECT_EQ(same.counters.old_tokens, 24) << "the prompt and four of five tokens";
  EXPECT_EQ(again.counters.old_tokens, 0);
  EXPECT_EQ(same.counters.preemptions, 0);
  EXPECT_EQ(same.counters.prefill_tokens, 40)
      << "two prompts: the second finds nothing of the first";
  EXPECT_EQ(again.counters.prefill_tokens, 20 + 25 + 4)
      << "all of the first once more, and of the second what its page of 16 tokens lacks";

  const Run kept = run(true, new_weights);
  expect_close(run(true, new_weights, BackendKind::torch).results, kept.results, 1e-4);
  EXPECT_NE(kept.results.at(1).log_probs, run(false, new_weights).results.at(1).log_probs);
  Engine fresh(spec, new_weights, small_options());
  expect_same(run_all(fresh, {make_request(2, tiny_prompt(20, 6), 0, 12)}),
              {{2, kept.results.at(2)}});
}

TEST(Engine, ReleaseGivesTheCacheBackAndGoesOn) {
  const auto spec = tiny_spec();
  const auto weights = tiny_weights(spec, DType::f32);
  for (const auto backend : {BackendKind::fused, BackendKind::torch}) {
    EngineOptions o = small_options();
    o.backend = backend;
    Engine plain(spec, weights, o), released(spec, weights, o);
    const Results want = run_all(plain, mixed_requests());
    for (auto& r : mixed_requests()) released.submit(std::move(r));
    Results got;
    for (int step = 0; !released.idle(); ++step) {
      if (step == 6) released.release();
      for (auto& r : released.step().finished) got[r.id] = std::move(r);
    }
    if (backend == BackendKind::fused) {
      expect_same(want, got);
    } else {  // LibTorch's own products depend on the batch in their last bits
      for (const auto& [id, result] : want)
        EXPECT_EQ(result.output_ids, got.at(id).output_ids) << "request " << id;
    }
  }
}

TEST(Engine, StopTokensStopPredicatesAndLimits) {
  const auto spec = tiny_spec();
  const auto weights = tiny_weights(spec, DType::f32);
  Engine engine(spec, weights, small_options());
  const auto prompt = tiny_prompt(12, 8);
  const auto free_run = run_all(engine, {make_request(1, prompt, 1, 30)}).at(1);
  EXPECT_EQ(free_run.finish_reason, FinishReason::length);
  ASSERT_EQ(free_run.output_ids.size(), 30u);

  Request stop = make_request(1, prompt, 1, 30);
  stop.sampling.stop_ids = {free_run.output_ids[9]};
  const auto stopped = run_all(engine, {stop}).at(1);
  EXPECT_EQ(stopped.finish_reason, FinishReason::stop);
  EXPECT_EQ(stopped.output_ids.back(), free_run.output_ids[9]);
  EXPECT_LE(stopped.output_ids.size(), 10u);

  Request predicate = make_request(1, prompt, 1, 30);
  int seen = 0;
  predicate.stop = [&seen](int32_t) { return ++seen == 5; };
  const auto cut = run_all(engine, {predicate}).at(1);
  EXPECT_EQ(cut.finish_reason, FinishReason::stop_string);
  EXPECT_EQ(cut.output_ids,
            std::vector<int32_t>(free_run.output_ids.begin(), free_run.output_ids.begin() + 5));

  const auto full = run_all(engine, {make_request(2, tiny_prompt(690, 8), 1, 30)}).at(2);
  EXPECT_EQ(full.output_ids.size(), 10u);  // the model has 700 positions
  EXPECT_EQ(full.finish_reason, FinishReason::length);
}

TEST(Engine, RefusesWhatCannotRun) {
  const auto spec = tiny_spec();
  const auto weights = tiny_weights(spec, DType::f32);
  EngineOptions o = small_options();
  o.page_size = 24;
  EXPECT_THROW(Engine(spec, weights, o), UserError);
  o = small_options();
  o.kv_bytes = 100;
  EXPECT_THROW(Engine(spec, weights, o), UserError);
  o = small_options();
  o.kv_bytes = 4 * 2 * 3 * 16 * 32 * 4;  // four pages
  Engine engine(spec, weights, o);
  try {
    engine.submit(make_request(1, tiny_prompt(50, 1), 1, 30));
    FAIL() << "five pages were given out of four";
  } catch (const UserError& e) {
    EXPECT_EQ(e.code(), ExitCode::configuration);
    EXPECT_NE(std::string(e.what()).find("5 KV pages"), std::string::npos) << e.what();
  }
  EXPECT_THROW(engine.submit(make_request(1, {}, 1, 3)), UserError);
  EXPECT_THROW(engine.submit(make_request(1, {500}, 1, 3)), UserError);
  EXPECT_THROW(engine.submit(make_request(1, {1}, -1, 3)), UserError);
  EXPECT_THROW(engine.submit(make_request(1, tiny_prompt(700, 1), 1, 3)), UserError);
  engine.submit(make_request(1, {1}, 1, 3));
  EXPECT_THROW(engine.submit(make_request(1, {2}, 1, 3)), UserError);
  EXPECT_TRUE(engine.step().tokens.size() == 1);
}

TEST(Engine, LogitsThatAreNotFiniteAreReported) {
  const auto spec = tiny_spec();
  auto weights = tiny_weights(spec, DType::f32);
  reinterpret_cast<float*>(weights.storage()[spec.index_of(model::Role::final_norm)])[3] =
      std::nanf("");
  Engine engine(spec, weights, small_options());
  engine.submit(make_request(1, {1, 2}, 1, 3));
  EXPECT_THROW(engine.step(), UserError);
}

}  // namespace
}  // namespace trireme::test
