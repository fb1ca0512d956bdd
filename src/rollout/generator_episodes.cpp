// Episodes of a replica: how its ranks act together on answers that only the first rank has.
#include "torch/torch.hpp"

#include <algorithm>
#include <utility>

#include "rollout/episodes.hpp"
#include "trireme/base/error.hpp"
#include "trireme/rollout/generator.hpp"
#include "trireme/text/stops.hpp"

namespace trireme::rollout {

int64_t Generator::poll_environment() { return episodes_ ? episodes_->poll() : 0; }

// With train.deterministic the time that programs take must not decide which sequences share a
// step: on a GPU that changes bits, with partial rollouts the weights of a token. There a step has
// all answers.
bool Generator::steps_have_all_answers() const {
  return options_.train.deterministic &&
         (options_.train.partial_rollout_enable || weights_.place() == generate::Place::device);
}

bool Generator::depends_on_answers() const {
  return unanswered_ > 0 && (engine_->idle() || steps_have_all_answers());
}

bool Generator::must_wait() const {
  if (!episodes_ || !depends_on_answers()) return false;
  return steps_have_all_answers() ? episodes_->pending() > 0 : !episodes_->has_moves();
}

void Generator::wait_for_answer(uint64_t id) {
  writing_.at(id).waits = true;
  ++unanswered_;
}

std::vector<Finished> Generator::carry_out_moves() {
  std::vector<Move> moves;
  if (episodes_) moves = episodes_->take_moves();
  if (roles_.tensor_parallel() > 1)
    moves = roles_.generators.along(comm::Axis::tensor).broadcast_value(moves, 0);
  std::vector<Finished> out;
  for (const Move& move : moves) {
    Writing& writing = writing_.at(move.id);
    switch (move.kind) {
      case Move::Kind::again:
        writing.recorded.reset();
        writing.outside = 0;
        break;
      case Move::Kind::finish: finish_episode(move.id, out); break;
      default: submit_episode(move, writing);
    }
  }
  if (!moves.empty()) arrange_episodes();
  return out;
}

void Generator::submit_episode(const Move& move, Writing& writing) {
  writing.waits = false;
  --unanswered_;
  if (writing.in_engine) {
    return engine_->resume(move.id, move.tokens,
                           text::stop_string_predicate(tokenizer_, stops_.strings));
  }
  const auto kept = std::exchange(writing.recorded, std::nullopt);
  writing.outside = 0;
  if (move.kind == Move::Kind::submit) return submit(move.id, writing, move.tokens, {}, 0);
  const Samples& recorded = *kept;
  generate::Result begun = result_of(recorded, 0);
  if (move.kind == Move::Kind::resume) {
    const auto append = [&](auto& values, auto value) {
      values.resize(values.size() + move.tokens.size(), value);
    };
    begun.output_ids.insert(begun.output_ids.end(), move.tokens.begin(), move.tokens.end());
    append(begun.log_probs, 0.f);
    if (!begun.sample_log_probs.empty()) append(begun.sample_log_probs, 0.f);
    append(begun.versions, -1);
  }
  // The turn begins after the last observation.
  const auto observed = std::find(begun.versions.rbegin(), begun.versions.rend(), -1);
  const int64_t turn_begin = begun.versions.rend() - observed;
  submit(move.id, writing,
         std::span(recorded.ids).first(static_cast<size_t>(recorded.prompt_len.front())),
         std::move(begun), turn_begin);
}

void Generator::finish_episode(uint64_t id, std::vector<Finished>& out) {
  generate::Result result;
  result.id = id;
  const Writing writing = take_out(id);
  if (writing.in_engine) result = engine_->finish(id);
  if (episodes_) out.push_back(finished(std::move(result), writing));
}

// Ends turns, which then wait for the environment. A turn that a limit ended has left the engine.
void Generator::end_turns(generate::StepOutput& output) {
  for (const generate::WrittenTurn& turn : output.paused) {
    wait_for_answer(turn.request);
    if (episodes_) episodes_->turn(turn);
  }
  for (generate::Result& result : std::exchange(output.finished, {})) {
    Writing& writing = writing_.at(result.id);
    wait_for_answer(result.id);
    writing.in_engine = false;
    writing.outside = std::ssize(result.output_ids);
    if (episodes_) episodes_->last_turn(std::move(result));
  }
}

// Those that began first continue first.
void Generator::arrange_episodes() {
  std::vector<uint64_t> ids = engine_->queue();
  std::ranges::sort(ids);
  engine_->arrange(ids);
}

void Generator::begin_anew() {
  engine_->begin_anew();
  if (in_turns()) arrange_episodes();
}

EnvironmentWork Generator::take_environment_work() {
  if (!episodes_) return {};
  const EpisodeCounters of_episodes = episodes_->take_counters();
  return {environments_->take_counters(), of_episodes.begun_again,
          of_episodes.rendered_differently};
}

}  // namespace trireme::rollout
