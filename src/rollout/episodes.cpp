#include "rollout/episodes.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "trireme/base/error.hpp"
#include "trireme/base/log.hpp"

namespace trireme::rollout {
namespace {

template <class T>
void append(std::vector<T>& to, std::span<const T> from) {
  to.insert(to.end(), from.begin(), from.end());
}

std::span<const int32_t> tokens_between(const Samples& one, int64_t from, int64_t to) {
  return one.tokens_of(0).subspan(static_cast<size_t>(from), static_cast<size_t>(to - from));
}

// The first action of a sequence at or after token `from`, else its length.
int64_t next_action(const Samples& one, int64_t from) {
  while (from < one.length(0) && !one.action_mask[static_cast<size_t>(from)]) ++from;
  return from;
}

// Whether the environment had answered turn `number` when the sequence was recorded.
bool was_answered(const Samples& one, size_t number) {
  if (one.turns.empty() || number >= one.turns.front().size()) return false;
  return one.turns.front()[number].end < one.length(0);
}

bool is_power_of_two(int64_t n) { return std::has_single_bit(static_cast<uint64_t>(n)); }

}  // namespace

Samples sequence_of(generate::Result result, const SequenceParts& parts, int64_t row,
                    bool truncated, int64_t max_len) {
  const auto of_all_tokens = [&](auto values, auto observed) {
    values.insert(values.begin(), parts.prompt.size(), {});
    values.resize(values.size() + parts.trailing.size(), observed);
    return values;
  };
  SequenceRecord sequence;
  sequence.id = result.id;
  sequence.prompt_row = row;
  sequence.ids = parts.prompt;
  append<int32_t>(sequence.ids, result.output_ids);
  append<int32_t>(sequence.ids, parts.trailing);
  sequence.action_ranges = parts.ranges;
  sequence.log_probs = of_all_tokens(std::move(result.log_probs), 0.f);
  if (truncated) sequence.sample_log_probs = of_all_tokens(std::move(result.sample_log_probs), 0.f);
  sequence.versions = of_all_tokens(std::move(result.versions), -1);
  sequence.finish_reason = result.finish_reason;
  sequence.turns = parts.turns;
  Samples samples;
  samples.add(sequence, max_len);
  for (const auto& [name, value] : parts.metrics) samples.episode_metrics[name] = {value};
  return samples;
}

generate::Result result_of(const Samples& samples, int64_t i) {
  const auto s = static_cast<size_t>(i);
  const auto first = samples.begin(i) + samples.prompt_len[s],
             last = samples.begin(i) + samples.length(i);
  generate::Result result;
  result.id = samples.id[s];
  result.output_ids.assign(samples.ids.begin() + first, samples.ids.begin() + last);
  result.log_probs.assign(samples.log_probs.begin() + first, samples.log_probs.begin() + last);
  if (!samples.sample_log_probs.empty()) {
    result.sample_log_probs.assign(samples.sample_log_probs.begin() + first,
                                   samples.sample_log_probs.begin() + last);
  }
  result.versions.assign(samples.version.begin() + first, samples.version.begin() + last);
  return result;
}

Episodes::Episode Episodes::new_episode(const data::PromptSet& prompts, int64_t row,
                                        uint64_t seed) const {
  Episode episode{
      .conversation = Conversation(tokenizer_, end_ids_, prompts[row], prompts.where(row)),
      .prompts = &prompts,
      .row = row,
      .seed = seed};
  episode.parts.prompt.assign(prompts[row].ids.begin(), prompts[row].ids.end());
  episode.parts.turns.emplace();
  return episode;
}

void Episodes::begin(uint64_t id, const data::PromptSet& prompts, int64_t row, uint64_t seed,
                     std::optional<Samples> recorded) {
  const auto [place, is_new] = episodes_.emplace(id, new_episode(prompts, row, seed));
  ASSERT(is_new);
  if (recorded && next_action(*recorded, 0) < recorded->length(0))
    place->second.recorded = std::move(recorded);
  reset(id, place->second);
}

void Episodes::reset(uint64_t id, const Episode& episode) {
  environment::Reset reset = environment::reset_for(*episode.prompts, episode.row);
  reset.episode = id;
  reset.seed = episode.seed;
  environments_.reset(reset);
}

void Episodes::step(uint64_t id, Episode& episode, std::span<const int32_t> ids,
                    FinishReason reason) {
  SequenceParts& parts = episode.parts;
  const int64_t end = episode.turn_begin + std::ssize(ids);
  const bool repeated = episode.recorded && was_answered(*episode.recorded, parts.turns->size());
  parts.ranges.emplace_back(episode.turn_begin, end);
  environments_.step({.episode = id,
                      .turn = std::ssize(*parts.turns),
                      .text = episode.conversation.add_turn(ids, reason),
                      .finish_reason = reason,
                      .repeated = repeated});
  parts.turns->push_back({static_cast<int32_t>(end), 0, reason});
}

void Episodes::turn(const generate::WrittenTurn& written) {
  step(written.request, episodes_.at(written.request), written.ids, written.finish_reason);
}

void Episodes::last_turn(generate::Result result) {
  Episode& episode = episodes_.at(result.id);
  const auto before = static_cast<size_t>(episode.turn_begin) - episode.parts.prompt.size();
  const uint64_t id = result.id;
  episode.result = std::move(result);
  step(id, episode, std::span(episode.result->output_ids).subspan(before), FinishReason::length);
}

void Episodes::close(uint64_t id) {
  if (episodes_.at(id).finish_reason == FinishReason::unfinished) environments_.close(id);
  std::erase_if(moves_, [id](const Move& move) { return move.id == id; });
  episodes_.erase(id);
}

int64_t Episodes::poll() {
  const std::vector<environment::Reply> replies = environments_.poll();
  for (const environment::Reply& reply : replies) {
    if (auto next = move(reply)) moves_.push_back(std::move(*next));
  }
  return std::ssize(replies);
}

std::vector<Move> Episodes::take_moves() {
  for (const Move& move : moves_) {
    Episode& episode = episodes_.at(move.id);
    if (move.kind == Move::Kind::finish || move.kind == Move::Kind::again) continue;
    episode.recorded.reset();  // the engine has it from now on
    episode.result.reset();
  }
  std::ranges::stable_sort(moves_, {}, &Move::id);
  return std::exchange(moves_, {});
}

std::optional<Move> Episodes::move(const environment::Reply& reply) {
  Episode& episode = episodes_.at(reply.episode);
  for (const auto& [name, value] : reply.metrics) episode.parts.metrics[name] += value;
  if (!episode.opened) return opened(reply.episode, episode, reply);
  episode.parts.turns->back().reward = static_cast<float>(reply.reward);
  return episode.recorded ? repeated(reply.episode, episode, reply)
                          : answered(reply.episode, episode, reply);
}

std::optional<Move> Episodes::opened(uint64_t id, Episode& episode,
                                     const environment::Reply& reply) {
  if (!reply.error.empty()) return over(id, episode, reply, FinishReason::broken);
  std::vector<int32_t>& prompt = episode.parts.prompt;
  prompt = episode.conversation.open(reply.messages, reply.text);
  episode.opened = true;
  episode.turn_begin = std::ssize(prompt);
  if (reply.done) return over(id, episode, reply, FinishReason::stop);
  if (episode.turn_begin >= limit_) return over(id, episode, reply, FinishReason::length);
  if (!episode.recorded) return Move{id, Move::Kind::submit, prompt};
  const Samples& recorded = *episode.recorded;
  const int64_t first = recorded.prompt_len.front();
  if (!std::ranges::equal(prompt, tokens_between(recorded, 0, first)))
    return begin_again(id, episode, reply);
  return repeat_next(id, episode);
}

// Sends the environment the next turn of a checkpoint. An unfinished turn is not sent: the engine
// continues it.
std::optional<Move> Episodes::repeat_next(uint64_t id, Episode& episode) {
  const Samples& recorded = *episode.recorded;
  const auto& turns = recorded.turns.empty() ? std::vector<Turn>{} : recorded.turns.front();
  const auto done = static_cast<size_t>(std::ssize(*episode.parts.turns));
  if (done == turns.size()) return Move{id, Move::Kind::go_on, {}};
  const Turn& next = turns[done];
  if (next.end == recorded.length(0)) episode.result = result_of(recorded, 0);
  step(id, episode, tokens_between(recorded, episode.turn_begin, next.end), next.finish_reason);
  return std::nullopt;
}

std::optional<Move> Episodes::repeated(uint64_t id, Episode& episode,
                                       const environment::Reply& reply) {
  const Samples& recorded = *episode.recorded;
  const Turn& turn = recorded.turns.front()[episode.parts.turns->size() - 1];
  const bool had_answer = turn.end < recorded.length(0);
  if (!had_answer) return answered(id, episode, reply);
  if (reply.done || episode.parts.turns->back() != turn) return begin_again(id, episode, reply);
  const auto observed = episode.conversation.observe(reply.messages, reply.text);
  const int64_t next = next_action(recorded, turn.end);
  if (!std::ranges::equal(observed, tokens_between(recorded, turn.end, next)))
    return begin_again(id, episode, reply);
  episode.turn_begin = next;
  return repeat_next(id, episode);
}

std::optional<Move> Episodes::answered(uint64_t id, Episode& episode,
                                       const environment::Reply& reply) {
  const Turn& turn = episode.parts.turns->back();
  if (!reply.error.empty()) return over(id, episode, reply, FinishReason::broken);
  if (reply.done)
    return over(id, episode, reply, reply.truncated ? FinishReason::length : turn.finish_reason);
  if (turn.finish_reason == FinishReason::length)
    return over(id, episode, reply, FinishReason::length);
  std::vector<int32_t> observed = episode.conversation.observe(reply.messages, reply.text);
  VALIDATE(!observed.empty(), ExitCode::bad_data, episode.prompts->where(episode.row),
           ": the environment's answer to turn ", episode.parts.turns->size() - 1,
           " has no token: answer with done, or with a text that the tokenizer does not drop");
  if (turn.end + std::ssize(observed) >= limit_) {
    episode.parts.trailing = std::move(observed);
    return over(id, episode, reply, FinishReason::length);
  }
  episode.turn_begin = turn.end + std::ssize(observed);
  return Move{id, Move::Kind::resume, std::move(observed)};
}

Move Episodes::over(uint64_t id, Episode& episode, const environment::Reply& reply,
                    FinishReason reason) {
  if (!reply.done) environments_.close(id);
  if (!reply.error.empty()) warn_broken(episode, reply.error);
  episode.finish_reason = reason;
  return Move{id, Move::Kind::finish, {}};
}

Move Episodes::begin_again(uint64_t id, Episode& episode, const environment::Reply& reply) {
  if (!reply.done) environments_.close(id);
  ++counters_.begun_again;
  if (is_power_of_two(++begun_again_)) {
    log::warning(base::text(
        episode.prompts->where(episode.row), ": the environment answered turn ", reply.turn,
        " in another way than before the restart, so the episode begins again (", begun_again_,
        " so far): a restart gives the same results only where the answers "
        "depend on the seed and the turns alone"));
  }
  episode = new_episode(*episode.prompts, episode.row, episode.seed);
  reset(id, episode);
  return Move{id, Move::Kind::again, {}};
}

void Episodes::warn_broken(const Episode& episode, const std::string& error) {
  if (!is_power_of_two(++broken_)) return;
  log::warning(base::text(episode.prompts->where(episode.row), ": the episode broke after ",
                          episode.parts.turns->size(), " turns and ends there (", error, "); ",
                          broken_, " so far"));
}

void Episodes::check_rendering(const Episode& episode, const generate::Result& result) {
  const auto& turns = *episode.parts.turns;
  if (turns.empty() || turns.back().finish_reason != FinishReason::stop) return;
  std::vector<int32_t> ids = episode.parts.prompt;
  append<int32_t>(ids, result.output_ids);
  if (std::ssize(ids) != turns.back().end || episode.conversation.is_rendered_alike(ids)) return;
  ++counters_.rendered_differently;
  if (std::exchange(warned_of_rendering_, true)) return;
  log::warning(base::text(
      episode.prompts->where(episode.row),
      ": the chat template gives other tokens of the whole episode than those that were written "
      "turn by turn (it renders earlier turns in another way, or splits a text differently). The "
      "tokens that were sampled are trained on; metrics count such episodes as "
      "rendered_differently"));
}

SequenceParts Episodes::take(uint64_t id, generate::Result& result) {
  auto taken = episodes_.extract(id);
  Episode& episode = taken.mapped();
  if (episode.result) result = std::move(*episode.result);
  result.id = id;
  result.finish_reason = episode.finish_reason;
  check_rendering(episode, result);
  return std::move(episode.parts);
}

SequenceParts Episodes::standing(uint64_t id, generate::Result& result) const {
  const Episode& episode = episodes_.at(id);
  result.id = id;
  if (episode.recorded) {
    const Samples& recorded = *episode.recorded;
    result = result_of(recorded, 0);
    SequenceParts parts;
    parts.prompt.assign(recorded.ids.begin(), recorded.ids.begin() + recorded.prompt_len.front());
    for (int64_t from = 0, to = 0; (from = next_action(recorded, to)) < recorded.length(0);) {
      for (to = from; to < recorded.length(0) && recorded.action_mask[static_cast<size_t>(to)];)
        ++to;
      parts.ranges.emplace_back(from, to);
    }
    parts.turns = recorded.turns.empty() ? std::vector<Turn>{} : recorded.turns.front();
    return parts;
  }
  if (episode.result) result = *episode.result;
  SequenceParts parts = episode.parts;
  parts.metrics.clear();  // the environment will report them again
  const int64_t length = std::ssize(parts.prompt) + std::ssize(result.output_ids);
  if (episode.opened && episode.turn_begin < length &&
      (parts.turns->empty() || parts.turns->back().end < length))
    parts.ranges.emplace_back(episode.turn_begin, length);
  return parts;
}

}  // namespace trireme::rollout
