// The few samples that a report shows, picked while samples.jsonl is read: best, worst and one by
// chance of iterations spread over the run, and first and last answers to the same prompt.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::report {

struct ShownSample {
  int64_t iteration = 0;
  std::string prompt = {}, response = {}, label = {}, finish = {};
  int64_t tokens = 0;  // of the response
  double reward = 0;
  std::vector<std::pair<std::string, double>> parts = {};  // of the reward, and metrics of sources
};

// Of one iteration.
struct SamplePicks {
  int64_t seen = 0;
  ShownSample best, worst, any;
};

class ShownSamples {
 public:
  static constexpr size_t most_iterations = 24;
  static constexpr size_t most_prompts = 64;

  // A line of samples.jsonl; one that is cut off or of something else is passed over.
  void add(std::string_view line);

  const std::map<int64_t, SamplePicks>& iterations() const { return iterations_; }
  // Of a prompt that was answered in several iterations: its first sample in the first and in the
  // last of them. At most `most`, those with the largest change of the reward.
  std::vector<std::pair<ShownSample, ShownSample>> changed_answers(size_t most) const;

 private:
  void thin_out();

  std::map<int64_t, SamplePicks> iterations_;  // ascending
  int64_t stride_ = 1;                         // iterations that are picked from
  std::map<std::string, std::pair<ShownSample, ShownSample>, std::less<>> prompts_;
};

// Words of both texts in order: which are only in the first one, only in the second one, or in
// both. By longest common subsequence; texts of more than `most` words are not compared: one piece
// each.
struct DiffPiece {
  enum class In : uint8_t { first, second, both };
  In in;
  std::string text;
};
std::vector<DiffPiece> word_difference(std::string_view first, std::string_view second,
                                       size_t most = 600);

}  // namespace trireme::report
