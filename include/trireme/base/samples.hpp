// The sample: one type from the generator through reward and buffer to the checkpoint, as structure
// of arrays. Token columns are packed: sequence i owns [cu_seqlens[i], cu_seqlens[i+1]). Never
// padded. Legend: B sequences, T packed tokens (prompt and response).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace trireme {

// unfinished: a generator has written it up to here and continues it; in checkpoints only. broken:
// an episode whose environment failed; the sequence has what was written before.
enum class FinishReason : uint8_t {
  stop = 0,
  length = 1,
  stop_string = 2,
  unfinished = 3,
  broken = 4
};
std::string_view to_string(FinishReason reason);
// Whether it ended by something else than the policy: a limit, a failed environment.
constexpr bool cut_short(FinishReason reason) {
  return reason == FinishReason::length || reason == FinishReason::broken;
}

// A turn of an episode that the policy has ended. Its tokens are the actions between the end of the
// turn before and its own.
struct Turn {
  int32_t end = 0;   // tokens of the sequence up to its last one, before the sequence was cut
  float reward = 0;  // by the environment; 0 until it has answered
  FinishReason finish_reason = FinishReason::stop;
  bool operator==(const Turn&) const = default;
  static constexpr auto fields = std::tuple{&Turn::end, &Turn::reward, &Turn::finish_reason};
};

// The environment's reward for an episode: the sum over its turns, rounded once.
float reward_of(const std::vector<Turn>& turns);

// One sequence as it is generated or read. Action ranges are half-open and ascending; tokens
// between them are observations.
struct SequenceRecord {
  uint64_t id = 0;
  int64_t prompt_row = 0;
  std::vector<int32_t> ids;
  std::vector<std::pair<int64_t, int64_t>> action_ranges;
  std::vector<float> log_probs = {};  // one per token, read inside the action ranges; empty: 0
  FinishReason finish_reason = FinishReason::stop;
  std::vector<int32_t> versions =
      {};  // of the weights, one per token, read inside the action ranges; empty: -1
  std::vector<float> sample_log_probs =
      {};  // as log_probs, of what top-p and top-k left; empty: they were off
  // Of an episode, those that have ended; none: not an episode.
  std::optional<std::vector<Turn>> turns = {};
};

// A column is a member here and a row of the table in samples.cpp, by which it is copied, checked
// and sent.
struct Samples {
  // Per sequence [B]
  std::vector<uint64_t> id;         // iteration, prompt ordinal, sample and attempt: see request_id
  std::vector<int64_t> prompt_row;  // row of the prompt set
  std::vector<int32_t> prompt_len;  // tokens of the prompt
  std::vector<FinishReason> finish_reason;
  std::vector<int64_t> cu_seqlens{0};  // [B+1]
  // Per token [T]
  std::vector<int32_t> ids;
  std::vector<uint8_t> action_mask;  // 1 on generated tokens, the end token included
  std::vector<float>
      log_probs;  // of the token under the rollout policy at its temperature; 0 where the mask is 0
  std::vector<int32_t> version;  // weights that produced the token; -1 on prompts
  // Per token [T], or empty where top-p and top-k were off: log-prob under the distribution that
  // they left, from which the token was drawn
  std::vector<float> sample_log_probs;
  // Per sequence [B], or empty where no environment answers: the turns of its episode.
  std::vector<std::vector<Turn>> turns;
  // Numbers that the environment reports of an episode, by name [B]: NaN where it reported none.
  std::map<std::string, std::vector<float>> episode_metrics;
  // Per sequence, later columns [B] or empty
  std::vector<float> reward;
  std::vector<std::vector<float>> reward_parts;  // [parts][B]
  // Metrics of reward sources, by "source/name" [B]: NaN where an answer had none.
  std::map<std::string, std::vector<float>> reward_metrics;
  // Question and answers of each judge, by source, as JSON objects for samples.jsonl [B]; "" where
  // a source has none. Filled only if samples are saved.
  std::map<std::string, std::vector<std::string>> judgements;
  // Per token, later columns [T] or empty; aligned with ids, valid where action_mask is 1
  std::vector<float> ref_log_probs;
  // Of an iteration that was interrupted between two optimizer steps: what its trainers had
  // computed before the first one.
  std::vector<float> old_log_probs;
  std::vector<float> values;
  std::vector<float> advantages;
  std::vector<float> returns;

  int64_t size() const { return static_cast<int64_t>(cu_seqlens.size()) - 1; }
  int64_t tokens() const { return cu_seqlens.back(); }
  int64_t length(int64_t i) const {
    return cu_seqlens[static_cast<size_t>(i) + 1] - cu_seqlens[static_cast<size_t>(i)];
  }
  int64_t begin(int64_t i) const { return cu_seqlens[static_cast<size_t>(i)]; }
  int64_t response_len(int64_t i) const { return length(i) - prompt_len[static_cast<size_t>(i)]; }
  std::span<const int32_t> tokens_of(int64_t i) const {
    return std::span(ids).subspan(static_cast<size_t>(begin(i)), static_cast<size_t>(length(i)));
  }

  // F4: the one place where sequences become samples. Cut to max_len tokens; a sequence that is cut
  // counts as stopped by its length. (OpenRLHF: SamplesGenerator._process_response_into_experience)
  void add(const SequenceRecord& sequence, int64_t max_len = INT64_MAX);
  // Appends sequence `i` of `other`; both must have the same later columns filled (an empty target
  // takes any), but for turns, and for metrics, whose names may differ.
  void append(const Samples& other, int64_t i);
  // The sequences named, in that order.
  Samples select(std::span<const int64_t> rows) const;
  // All sequences of `other`, in their order.
  void append(const Samples& other);
  // Without what reward ranks fill in.
  Samples unscored() const;
  // Sorted by id: the order that every rank count agrees on.
  Samples sorted() const;
  // Throws InternalError when the columns do not fit each other.
  void check() const;

  // Wire form, little-endian, the same on every platform we run on; from_bytes throws
  // UserError(bad_data).
  std::string to_bytes() const;
  static Samples from_bytes(std::string_view bytes);

  bool operator==(const Samples&) const = default;
};

// (iteration, prompt ordinal in the batch, sample of the prompt, attempt) in one number that sorts
// in this order: 24 + 20 + 12 + 8 bits. Throws UserError(configuration) where a part does not fit.
uint64_t request_id(int64_t iteration, int64_t prompt, int64_t sample, int64_t attempt = 0);

// Its parts.
inline int64_t iteration_of(uint64_t id) { return static_cast<int64_t>(id >> 40); }
inline int64_t prompt_of(uint64_t id) { return static_cast<int64_t>(id >> 20 & 0xFFFFF); }
inline int64_t sample_of(uint64_t id) { return static_cast<int64_t>(id >> 8 & 0xFFF); }
// Iteration and prompt: the samples of one prompt share it. Groups sort in the order in which their
// prompts were drawn.
inline uint64_t group_of(uint64_t id) { return id >> 20; }

// `samples` without those of these groups, which are ascending.
Samples without(std::span<const uint64_t> groups, const Samples& samples);

}  // namespace trireme
