// Requests to the engine and its answers: token ids only; text is the caller's.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "trireme/base/samples.hpp"
#include "trireme/base/token_bias.hpp"

namespace trireme::generate {

struct SamplingParams {
  double temperature =
      1;              // 0: greedy, the lowest id on ties; log-probs are then those at temperature 1
  double top_p = 1;   // see kernels::Truncation for the order of top-k and top-p and for ties
  int64_t top_k = 0;  // 0: off
  double min_p = 0;   // 0: off
  double repetition_penalty = 1;  // of ids that the prompt or the answer has; before the
                                  // temperature, after biases
  int64_t max_new_tokens = 256;
  int64_t min_new_tokens = 0;  // tokens before the end: until then no stop id can be drawn and
                               // Request::stop is not obeyed
  std::vector<int32_t>
      stop_ids;  // a token of this list ends the sequence and is part of the output
  std::vector<TokenBias> logit_bias;  // added before the temperature divides; the sum is rounded to
                                      // the logits' type. Each id once
  uint64_t seed = 0;                  // draws are a function of (seed, request id, position)
};

struct Result {
  uint64_t id = 0;
  // Generated tokens, stop tokens included. Observations between turns are among them: their
  // log-probs are 0, their versions -1.
  std::vector<int32_t> output_ids;
  // Of each under the full softmax at the temperature, what a trainer computes, also where
  // min_new_tokens kept ids from being drawn or logit_bias made others likelier.
  std::vector<float> log_probs;
  std::vector<float> sample_log_probs;  // under the distribution that biases, penalties, top-p,
                                        // top-k and min-p left; empty when the last three are off
  std::vector<int32_t> versions;        // of the weights that gave each token
  FinishReason finish_reason = FinishReason::length;
};

struct Request {
  uint64_t id = 0;              // unique among unfinished requests; see trireme::request_id
  std::vector<int32_t> prompt;  // at least one token
  SamplingParams sampling;
  // Which of the model's adapters computes it, where it has several (model::with_adapters); -1: the
  // model without one.
  int32_t adapter = -1;
  // Called once for each output token in order; true ends the sequence (finish reason stop_string)
  // when there are more than min_new_tokens. A stop string's streaming decoder lives behind it. All
  // tensor-parallel ranks must give the same answers.
  std::function<bool(int32_t token)> stop;
  // Tokens that an engine wrote before (Engine::standing); generation continues after them.
  Result begun;
  // A sequence in turns: above 0, the tokens that it can have in all. Where the policy ends a turn
  // (sampling.stop_ids, `stop`), the sequence is paused until Engine::resume() or finish(); a limit
  // finishes it. max_new_tokens, min_new_tokens and `stop` are then about a turn. 0: one turn.
  int64_t longest = 0;
  int64_t turn_begin = 0;  // of `begun`: the tokens before the turn that is being written
};

// A turn that the policy has ended; its sequence is paused.
struct WrittenTurn {
  uint64_t request = 0;
  std::vector<int32_t> ids;  // of the turn, its stop token included
  FinishReason finish_reason = FinishReason::stop;
};

// A token as it comes out, for streaming.
struct Token {
  uint64_t request = 0;
  int32_t id = 0;
  float log_prob = 0;
};

}  // namespace trireme::generate
