// The output of `trireme generate`, which a run that was cut off leaves in a state from which the
// next one goes on.
//
// Beside OUTPUT.partial, which takes the answers as they finish, is OUTPUT.job: the task that they
// answer. A run that finds both, with the same job, keeps the complete lines and adds the missing
// ones. With the last of them OUTPUT.partial becomes OUTPUT, with a record as every output of a
// tool has (job_record.hpp). Draws depend on nothing but seed, prompt and sample, so an answer that
// is written a second time is the same one, and a damaged line can be dropped.
#pragma once

#include <cstdint>
#include <string_view>
#include <tuple>
#include <vector>

#include "tools/output.hpp"

namespace trireme::tools {

// Which of the answers (prompt, sample) there are: a bit each. Goes through base/wire.hpp.
class AnswerSet {
 public:
  AnswerSet() = default;
  AnswerSet(int64_t prompts, int64_t samples)
      : prompts_(prompts),
        samples_(samples),
        bits_(static_cast<size_t>((prompts * samples + 7) / 8), 0) {}

  int64_t size() const { return size_; }
  int64_t wanted() const { return prompts_ * samples_; }
  bool has(int64_t prompt, int64_t sample) const;
  // False: it was there, or there is no such answer.
  bool add(int64_t prompt, int64_t sample);
  // All samples of the prompt are there.
  bool has_all(int64_t prompt) const;

 private:
  int64_t prompts_ = 0, samples_ = 0, size_ = 0;
  std::vector<uint8_t> bits_;

 public:
  static constexpr auto fields =
      std::tuple{&AnswerSet::prompts_, &AnswerSet::samples_, &AnswerSet::size_, &AnswerSet::bits_};
};

class AnswerFile {
 public:
  // Adds the answers that an earlier run has left to `done`. Throws UserError: configuration when
  // they are those of another job (unless `existing` says that they are replaced), locked.
  AnswerFile(const std::filesystem::path& path, const ToolJob& job, AnswerSet& done,
             Existing existing = Existing::refused);
  void write(std::string_view lines) { output_.write(lines); }
  void finish();

 private:
  OutputFile output_;
  ToolJob job_;
  std::filesystem::path job_file_;  // empty: a stream
};

}  // namespace trireme::tools
