// The head: log-probability and entropy of given tokens, in chunks of the vocabulary. Never holds
// [N, V]. Legend: N rows (positions whose next token is asked for), D hidden, V vocabulary.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

#include "trireme/base/error.hpp"
#include "trireme/kernels/log_sum_exp.hpp"

namespace trireme::kernels {

// The head's weight [V, D]. With an adapter, `low` is its B [V, r], and hidden has r more columns
// on the right, scale A x: logits = x weight^T + low's product. `cap` above 0: of the model's
// logits, cap_logits() of those products. As a tensor, for those who know no adapter, it is the
// weight alone; UserError(configuration) with one.
struct HeadWeight {
  at::Tensor weight, low;
  double cap;
  HeadWeight(at::Tensor whole, at::Tensor of_adapter = {}, double its_cap = 0)
      : weight(std::move(whole)), low(std::move(of_adapter)), cap(its_cap) {}
  operator const at::Tensor&() const {
    VALIDATE(!low.defined(), ExitCode::configuration,
             "an adapter of lm_head is not supported by this loss: leave lm_head out of "
             "actor.lora.targets");
    return weight;
  }
};

struct TokenLogProbs {
  at::Tensor log_probs;  // f32 [N], differentiable in hidden and weight
  at::Tensor entropy;    // f32 [N], of the temperature-scaled distribution; undefined unless asked
                         // for; differentiable
};

enum class Entropy : uint8_t { skip, value, differentiable };

// How the vocabulary is read: so many rows of the weight at a time. On the host the logits of as
// many chunks as fit `kept_bytes` stay for the backward pass, whose first run takes them; it
// multiplies anew for the others, with the same bits.
struct HeadChunks {
  int64_t rows = vocabulary_chunk;
  int64_t kept_bytes = 0;
};

// logits = hidden [N, D] x weight [V, D]^T, summed in fp32 and kept in the type of hidden (an f32
// hidden may have a bf16 weight, which is widened chunk by chunk): in bf16 each logit is rounded
// once (an error of up to 2^-9 of it, 0.03 where |logit| is 8 to 16), as Hugging Face and OpenRLHF
// round it and as our generator does. From there on everything is fp32: z = logits / `temperature`,
// log_probs[i] = z[targets[i]] - logsumexp(z). Forward: online log-sum-exp over vocabulary chunks.
// Backward: each chunk's dW rows are written once, in the type of weight; where weight is a leaf
// with an fp32 gradient of its own (own_gradient.hpp) they go there chunk by chunk, so that no
// gradient of [V, D] is made beside it; the gradient of the logits is rounded to the type of
// hidden; dh accumulates in fp32. hidden and weight are f32 or bf16; targets i64 [N]. OpenRLHF:
// models/utils.py, log_probs_from_logits (F1, F2).
TokenLogProbs token_log_probs(const at::Tensor& hidden, const HeadWeight& weight,
                              const at::Tensor& targets, double temperature, Entropy entropy,
                              const HeadChunks& chunks = {});

// cap * tanh(logits / cap), in place; each step rounded to their type, as transformers does.
void cap_logits(const at::Tensor& logits, double cap);

}  // namespace trireme::kernels
