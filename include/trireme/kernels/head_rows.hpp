// The head's passes over a chunk of logits on whatever computes them, as functors (exec.hpp), like
// log_sum_exp.hpp does on hosts, a row of logits in the same sixteen lanes, so that without fused
// multiply-add log-probs and gradients have the host's bits. Logits are read where they lie and
// become their gradient there: nothing of their size is made beside them. Legend: N rows, C ids of
// one chunk of the vocabulary.
#pragma once

#include <cstdint>

namespace trireme::kernels {

// Pointers to memory of what computes them.
struct HeadChunk {
  void* logits = nullptr;  // [N, C] fp32, or bf16 as its bits
  bool bf16 = false;
  int64_t rows = 0, columns = 0;     // N, C
  int64_t first = 0;                 // id of the first column
  const int64_t* targets = nullptr;  // [N] ids of the whole vocabulary
  float scale = 1;                   // 1 / temperature
};

// Running statistics of a row, as LogSumExp.
struct HeadRow {
  double sum, weighted;
  float max;
  float unused;
};

// Chunks come in order; the first one begins at id 0.
struct HeadScan {
  HeadChunk chunk;
  HeadRow* seen = nullptr;  // [N] scratch between the chunks of a row
  bool with_entropy = false;
  bool last = false;             // of the vocabulary: the results are written
  float* log_probs = nullptr;    // [N] until then the targets' logits
  float* log_sum_exp = nullptr;  // [N]
  float* entropy = nullptr;      // [N] where it is asked for
};

// The chunk's logits become the gradient with respect to them, as SoftmaxGradient has it, the
// target's own term included.
struct HeadGradient {
  HeadChunk chunk;
  const float* log_sum_exp = nullptr;     // [N]
  const float* entropy = nullptr;         // [N]; null: there is no gradient of it
  const float* grad_log_probs = nullptr;  // [N]
  const float* grad_entropy = nullptr;    // [N]; null: there is none
};

// What starts them; not waited for.
struct HeadKernels {
  void (*scan)(const HeadScan& scan);
  void (*gradient)(const HeadGradient& gradient);
};

}  // namespace trireme::kernels
