// Draws the next token of several sequences from their logits, across the tensor-parallel ranks' slices of the vocabulary.
// Only summaries, the chosen ids and, under truncation, the candidates travel between ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "thread_team.hpp"
#include "trireme/comm/comm.hpp"
#include "trireme/generate/request.hpp"
#include "trireme/kernels/sampling.hpp"

namespace trireme::generate {

struct DrawRequest {
  kernels::LogitsRow logits;  // this rank's slice
  const SamplingParams* sampling = nullptr;
  uint64_t request = 0;
  uint32_t position = 0;      // of the token to draw
  std::span<const int32_t> forbidden = {};  // ids that this draw must not give (of the whole vocabulary)
};

struct Drawn {
  int32_t id = 0;
  float log_prob = 0;         // under the softmax of all logits, forbidden ones included
  std::optional<float> sample_log_prob;  // under top-p or top-k
};

class Sampler {
 public:
  Sampler(int64_t vocabulary, int64_t vocabulary_first, ThreadTeam& team, const comm::CommView& tensor_parallel)
      : vocabulary_(vocabulary), first_id_(vocabulary_first), team_(team), comm_(tensor_parallel) {}

  // The same result on every rank. Collective over the tensor-parallel ranks.
  std::vector<Drawn> draw(std::span<const DrawRequest> requests);

 private:
  // One rank's share of a row's distribution; `full` with the forbidden ids.
  struct Summary {
    double sum = 0;
    double full_sum = 0;
    float max = 0;
    float full_max = 0;
    float best = 0;  // largest logit times the scale
    int32_t best_id = 0;
  };
  struct Choice {
    int32_t id = -1;  // -1: another rank has it
    float z = 0;
  };
  struct Row;
  void summarise(std::span<const DrawRequest> requests, std::vector<Row>& rows);
  void choose(std::span<const DrawRequest> requests, std::vector<Row>& rows);
  void draw_truncated(std::span<const DrawRequest> requests, std::vector<Row>& rows);
  std::vector<std::vector<kernels::Candidate>> gather(const std::vector<std::vector<kernels::Candidate>>& mine) const;

  int64_t vocabulary_;
  int64_t first_id_;
  ThreadTeam& team_;
  comm::CommView comm_;
};

}  // namespace trireme::generate
