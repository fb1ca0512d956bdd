// Draws the next token of several sequences from their logits, across the tensor-parallel ranks'
// slices of the vocabulary. Only summaries, the chosen ids and, under truncation, the candidates
// travel between ranks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "draw.hpp"
#include "thread_team.hpp"
#include "trireme/comm/comm.hpp"
#include "trireme/kernels/sampling.hpp"

namespace trireme::generate {

class Sampler {
 public:
  Sampler(int64_t vocabulary, int64_t vocabulary_first, ThreadTeam& team,
          const comm::CommView& tensor_parallel)
      : vocabulary_(vocabulary), first_id_(vocabulary_first), team_(team), comm_(tensor_parallel) {}

  // The same result on every rank; `logits` has a row for each request, in host memory. Collective
  // over the tensor-parallel ranks.
  std::vector<Drawn> draw(std::span<const DrawRequest> requests,
                          std::span<const kernels::LogitsRow> logits);

 private:
  // One rank's share of a row's distribution; `full` of the logits as they are.
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
  void summarise(std::span<const DrawRequest> requests, std::span<const kernels::LogitsRow> logits,
                 std::vector<Row>& rows);
  void choose(std::span<const DrawRequest> requests, std::vector<Row>& rows);
  void draw_truncated(std::span<const DrawRequest> requests, std::vector<Row>& rows);
  static void choose_truncated(const DrawRequest& request,
                               std::vector<kernels::Candidate> candidates, Row& row);
  void take_back_biases(std::span<const kernels::LogitsRow> logits, std::vector<Row>& rows) const;
  std::vector<std::vector<kernels::Candidate>> gather(
      std::vector<std::vector<kernels::Candidate>> mine) const;

  int64_t vocabulary_;
  int64_t first_id_;
  ThreadTeam& team_;
  comm::CommView comm_;
};

}  // namespace trireme::generate
