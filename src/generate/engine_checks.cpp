#include "engine_checks.hpp"

#include <algorithm>
#include <set>

#include "trireme/base/error.hpp"

namespace trireme::generate {

void check_options(const EngineOptions& o) {
  const int64_t pages[] = {16, 32, 64, 128, 256};
  VALIDATE(std::ranges::find(pages, o.page_size) != std::end(pages), ExitCode::configuration,
           "the KV page size is ", o.page_size, " tokens: choose 16, 32, 64, 128 or 256");
  VALIDATE(
      o.max_batch >= 1 && o.prefill_chunk_tokens >= 1 && o.threads >= 0, ExitCode::configuration,
      "generation needs at least one sequence per batch and one token per prefill chunk "
      "(max_batch ",
      o.max_batch, ", prefill_chunk_tokens ", o.prefill_chunk_tokens, ", threads ", o.threads, ")");
  VALIDATE(o.speculation_tokens >= 0, ExitCode::configuration, "speculation_tokens ",
           o.speculation_tokens, " is negative: 0 switches guesses off");
}

void check_tokens(uint64_t request, std::span<const int32_t> tokens,
                  const config::ModelShape& shape) {
  for (const int32_t token : tokens) {
    VALIDATE(token >= 0 && token < shape.vocab, ExitCode::bad_data, "request ", request,
             " contains token id ", token, ", outside the vocabulary of ", shape.vocab,
             ": the tokenizer does not belong to this model");
  }
}

void check_request(const Request& request, const config::ModelShape& shape) {
  const SamplingParams& p = request.sampling;
  const auto length = static_cast<int64_t>(request.prompt.size());
  VALIDATE(length >= 1, ExitCode::bad_data, "request ", request.id,
           " has an empty prompt: give it at least one token (e.g. begin-of-text)");
  VALIDATE(length < shape.longest(), ExitCode::bad_data, "request ", request.id,
           " has a prompt of ", length, " tokens, the model has ", shape.longest(),
           " positions: shorten the prompt");
  check_tokens(request.id, request.prompt, shape);
  VALIDATE(request.turn_begin <= std::ssize(request.begun.output_ids), ExitCode::internal,
           "request ", request.id, " has a turn that begins after its tokens");
  VALIDATE(p.max_new_tokens >= 1 && p.temperature >= 0 && p.top_p > 0 && p.top_p <= 1 &&
               p.top_k >= 0 && p.min_p >= 0 && p.min_p <= 1 && p.repetition_penalty > 0,
           ExitCode::configuration, "request ", request.id, " asks for temperature ", p.temperature,
           ", top_p ", p.top_p, ", top_k ", p.top_k, ", min_p ", p.min_p, ", repetition_penalty ",
           p.repetition_penalty, ", max_new_tokens ", p.max_new_tokens,
           ": temperature and top_k must be at least 0, top_p in (0, 1], min_p in [0, 1], "
           "repetition_penalty above 0, max_new_tokens at least 1");
  VALIDATE(
      p.min_new_tokens <= 0 ||
          static_cast<int64_t>(std::set(p.stop_ids.begin(), p.stop_ids.end()).size()) < shape.vocab,
      ExitCode::configuration, "request ", request.id, " forbids every token (all ", shape.vocab,
      " are stop tokens, and min_new_tokens is ", p.min_new_tokens, "): name fewer stop tokens");
  for (const TokenBias& bias : p.logit_bias) {
    VALIDATE(bias.id >= 0 && bias.id < shape.vocab, ExitCode::configuration, "request ", request.id,
             " biases token ", bias.id, ", outside the vocabulary of ", shape.vocab,
             ": correct or remove it");
  }
}

}  // namespace trireme::generate
