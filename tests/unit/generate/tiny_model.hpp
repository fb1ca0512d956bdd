// A small random model, its full forward pass by model:: functions, and runs of the engine on it.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "trireme/generate/engine.hpp"

namespace trireme::test {

// 2 layers, hidden 96, 6 query and 3 KV heads of 16, ffn 160, `vocab` tokens; wide weights, so that
// distributions are not flat.
model::ModelSpec tiny_spec(int64_t vocab = 500, bool tied = false, bool qkv_bias = false);

// A small model of each family, with windows smaller than a text, soft caps and every rotation;
// some families several times. Two query heads on each KV head of 16 elements or what the family
// takes; the longest text is 256 tokens.
struct SmallFamily {
  std::string config;  // what its config.json says beside sizes
  config::ModelShape shape;
};
std::vector<SmallFamily> small_families(int64_t kv_heads);

// This rank's slices of the same random weights, whatever the degree. `salt` gives other weights.
generate::GeneratorWeights tiny_weights(const model::ModelSpec& spec, config::DType dtype,
                                        int rank = 0, int degree = 1, uint64_t salt = 1);

// Logits after every token of one sequence by a full forward pass: [T, V] in the compute dtype.
at::Tensor full_logits(const model::ModelSpec& spec, const generate::GeneratorWeights& weights,
                       const std::vector<int32_t>& ids);
// Log-probabilities of ids[1 ..] as the trainer computes them (kernels::token_log_probs).
std::vector<float> full_log_probs(const model::ModelSpec& spec,
                                  const generate::GeneratorWeights& weights,
                                  const std::vector<int32_t>& ids, double temperature);

// Prompts of several lengths, the same for every call.
std::vector<int32_t> tiny_prompt(int64_t length, uint64_t salt, int64_t vocab = 500);

// Ten requests of all kinds: greedy, plain, top-p and top-k, prompts of several lengths, half of
// them with half of the vocabulary as stop ids, which may not be drawn before the fifth token.
std::vector<generate::Request> mixed_requests(int64_t vocab);

using Results = std::map<uint64_t, generate::Result>;
Results run_all(generate::Engine& engine, std::vector<generate::Request> requests);

// Text and log-probs of both are the same bits.
void expect_same(const Results& a, const Results& b);

// Texts are the same, log-probs within the tolerance: what sums in another order give, but where a
// draw falls within 1e-5 of a boundary.
void expect_close(const Results& want, const Results& got, double tolerance);
// Every rank has the same bits. Collective.
void expect_agreement(const Results& mine);

}  // namespace trireme::test
