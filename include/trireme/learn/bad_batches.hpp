// Batches of optimizer steps whose gradient is not finite, kept for inspection.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "trireme/learn/update_step.hpp"

namespace trireme::learn {

class BadBatches {
 public:
  BadBatches(std::filesystem::path run_folder, int rank)
      : folder_(std::move(run_folder) / "not_finite"), rank_(rank) {}

  // Writes this rank's sequences of the step to not_finite/iteration-N-step-M-rank-R.jsonl, and
  // warns with the ids of those that have a number in them that is not finite. The first few of a
  // start are kept. Local; a folder that cannot be written is a warning.
  void save(const learn::UpdateStep& step, int64_t iteration, int64_t number);
  // The same of supervised training; `prompt_row` is the row of the data set, and a pair has two
  // lines.
  void save(std::span<const RowBatch> batches, int64_t iteration);

 private:
  void keep(const std::vector<Samples>& parts, const std::string& name);

  std::filesystem::path folder_;
  int rank_;
  int kept_ = 0;
};

}  // namespace trireme::learn
