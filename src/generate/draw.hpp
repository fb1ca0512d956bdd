// A draw of the next token of one sequence, as the engine asks for it and gets it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "trireme/generate/request.hpp"

namespace trireme::generate {

// Logits of a row of an earlier step (StepBackend::keep), this rank's slice, in the backend's own
// memory.
using KeptLogits = std::shared_ptr<const void>;

struct DrawRequest {
  int64_t row = 0;  // of the step's logits; what `kept` holds where that is not null
  KeptLogits kept;
  const SamplingParams* sampling = nullptr;
  uint64_t request = 0;
  uint32_t position = 0;  // of the token to draw
  std::span<const int32_t> forbidden =
      {};                          // ids that this draw must not give (of the whole vocabulary)
  std::vector<int32_t> seen = {};  // ids before it, each once; where there is a repetition penalty
};

struct Drawn {
  int32_t id = 0;
  // Under the softmax of all logits as they are, forbidden ones included, without biases. Not
  // finite where these are not: then the id means nothing.
  float log_prob = 0;
  std::optional<float> sample_log_prob;  // under top-p, top-k or min-p
};

}  // namespace trireme::generate
