// The episodes of a replica on its first rank: their turns so far, and the next move after each
// reply of the environment. Knows no engine and no other rank: Generator carries out its moves.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "rollout/conversation.hpp"
#include "trireme/environment/environments.hpp"
#include "trireme/generate/request.hpp"

namespace trireme::rollout {

// The next action of all ranks of a replica on a sequence.
struct Move {
  // submit: its first turn is written after `tokens`, the prompt. go_on: it is submitted with its
  // part in a checkpoint. resume: the next turn is written after `tokens`, an observation.
  // finish: it has ended. again: its part in a checkpoint is dropped.
  enum class Kind : int32_t { submit, go_on, resume, finish, again };
  uint64_t id = 0;
  Kind kind = Kind::finish;
  std::vector<int32_t> tokens = {};
  static constexpr auto fields = std::tuple{&Move::id, &Move::kind, &Move::tokens};
};

// The parts of a sample that the engine does not have.
struct SequenceParts {
  std::vector<int32_t> prompt;
  std::vector<std::pair<int64_t, int64_t>> ranges = {};  // of actions, in tokens of the sequence
  std::optional<std::vector<Turn>> turns = {};           // none: not an episode
  std::vector<int32_t> trailing = {};                    // an observation that no turn follows
  std::map<std::string, float> metrics = {};
};
// `truncated`: the draws were, by top-p, top-k or min-p.
Samples sequence_of(generate::Result result, const SequenceParts& parts, int64_t row,
                    bool truncated, int64_t max_len);
// The engine's part of sequence `i` of a checkpoint.
generate::Result result_of(const Samples& samples, int64_t i);

struct EpisodeCounters {
  int64_t begun_again = 0;           // the environment answered otherwise than before a restart
  int64_t rendered_differently = 0;  // the template gives other tokens of the whole conversation
};

class Episodes {
 public:
  // Keeps references. `end_ids`: tokens that end a turn; `limit`: tokens of a sequence.
  Episodes(const text::Tokenizer& tokenizer, const std::vector<int32_t>& end_ids,
           environment::Environments& environments, int64_t limit)
      : tokenizer_(tokenizer), end_ids_(end_ids), environments_(environments), limit_(limit) {}

  // Asks the environment to start an episode. `recorded`: its part in a checkpoint; the environment
  // gets these turns again and must answer as before.
  void begin(uint64_t id, const data::PromptSet& prompts, int64_t row, uint64_t seed,
             std::optional<Samples> recorded);
  // The policy has ended a turn: sends it to the environment.
  void turn(const generate::WrittenTurn& written);
  // The same by a limit; the engine has finished the sequence.
  void last_turn(generate::Result result);
  // Abandons an episode, with or without a request in flight.
  void close(uint64_t id);
  // Takes the environment's replies that have arrived; returns their number. Never waits.
  int64_t poll();
  int64_t pending() const { return environments_.pending(); }
  bool has_moves() const { return !moves_.empty(); }
  // The next moves of episodes that got a reply, in the order of ids.
  std::vector<Move> take_moves();
  // Removes and returns a finished episode. `result` comes from the engine, or is filled in here if
  // the engine does not have it any more.
  SequenceParts take(uint64_t id, generate::Result& result);
  // An unfinished one; as above.
  SequenceParts standing(uint64_t id, generate::Result& result) const;
  // Of the time since the last call.
  EpisodeCounters take_counters() { return std::exchange(counters_, {}); }

 private:
  struct Episode {
    Conversation conversation;
    const data::PromptSet* prompts = nullptr;
    int64_t row = 0;
    uint64_t seed = 0;
    SequenceParts parts = {};  // turns that have ended
    int64_t turn_begin = 0;    // tokens before the turn that is being written
    bool opened = false;       // by the environment
    FinishReason finish_reason = FinishReason::unfinished;
    std::optional<generate::Result> result = {};  // where the engine does not have it
    std::optional<Samples> recorded = {};  // until the environment was told of all its turns again
  };
  Episode new_episode(const data::PromptSet& prompts, int64_t row, uint64_t seed) const;
  void reset(uint64_t id, const Episode& episode);
  void step(uint64_t id, Episode& episode, std::span<const int32_t> ids, FinishReason reason);
  std::optional<Move> move(const environment::Reply& reply);
  std::optional<Move> opened(uint64_t id, Episode& episode, const environment::Reply& reply);
  std::optional<Move> answered(uint64_t id, Episode& episode, const environment::Reply& reply);
  std::optional<Move> repeated(uint64_t id, Episode& episode, const environment::Reply& reply);
  std::optional<Move> repeat_next(uint64_t id, Episode& episode);
  Move begin_again(uint64_t id, Episode& episode, const environment::Reply& reply);
  Move over(uint64_t id, Episode& episode, const environment::Reply& reply, FinishReason reason);
  void check_rendering(const Episode& episode, const generate::Result& result);
  void warn_broken(const Episode& episode, const std::string& error);

  const text::Tokenizer& tokenizer_;
  const std::vector<int32_t>& end_ids_;
  environment::Environments& environments_;
  int64_t limit_;
  std::map<uint64_t, Episode> episodes_;
  std::vector<Move> moves_;
  EpisodeCounters counters_;
  int64_t broken_ = 0, begun_again_ = 0;  // in all
  bool warned_of_rendering_ = false;
};

}  // namespace trireme::rollout
