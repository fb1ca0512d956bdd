// Requests under way in the scheduler, the order in which they wait, and which leave before their
// end: sequences, and pages that are of no use any more.
#include <algorithm>
#include <unordered_map>
#include <utility>

#include "scheduler.hpp"
#include "trireme/base/error.hpp"

namespace trireme::generate {

// Pages of positions that no layer sees from the next token on.
void Scheduler::release_unseen(Sequence& sequence) {
  if (rules_.window == 0) return;
  const int64_t unseen = (sequence.computed + 1 - rules_.window) / options_.page_size;
  for (int64_t p = std::min(unseen, std::ssize(sequence.pages)) - 1; p >= 0; --p) {
    int32_t& page = sequence.pages[static_cast<size_t>(p)];
    if (page == no_page) return;  // nor are there any before it
    pool_.release(std::exchange(page, no_page));
  }
}

// Sequences that are rotated otherwise from this length on.
void Scheduler::put_back_other_rotations() {
  for (size_t i = running_.size(); i-- > 0;) {
    const Sequence& s = *running_[i];
    if (s.computed > 0 && rules_.rotation_of(s.length()) != s.rotation) put_back(i);
  }
}

// `prefill`: prompt tokens that the step has anyway.
bool Scheduler::prompts_begin(int64_t prefill) const {
  const int64_t room = options_.max_batch - std::ssize(running_);
  return prefill > 0 || running_.empty() || room >= std::min(together_, std::ssize(waiting_));
}

std::vector<Result> Scheduler::standing() const {
  std::vector<Result> out;
  for (const auto& sequence : running_) out.push_back(sequence->result);
  for (const auto& sequence : waiting_) out.push_back(sequence->result);
  for (const auto& [id, sequence] : paused_) out.push_back(sequence->result);
  std::ranges::sort(out, {}, &Result::id);
  return out;
}

std::vector<uint64_t> Scheduler::queue() const {
  std::vector<uint64_t> ids;
  for (const auto& sequence : running_) ids.push_back(sequence->result.id);
  for (const auto& sequence : waiting_) ids.push_back(sequence->result.id);
  for (const auto& [id, sequence] : paused_) ids.push_back(id);
  return ids;
}

std::vector<uint64_t> Scheduler::longer(int64_t tokens) const {
  std::vector<uint64_t> ids;
  const auto add = [&](const SequencePtr& sequence) {
    if (std::ssize(sequence->result.output_ids) >= tokens) ids.push_back(sequence->result.id);
  };
  std::ranges::for_each(running_, add);
  std::ranges::for_each(waiting_, add);
  for (const auto& [id, sequence] : paused_) add(sequence);
  return ids;
}

void Scheduler::arrange(std::span<const uint64_t> order) {
  std::unordered_map<uint64_t, size_t> places;
  for (const uint64_t id : order) places.emplace(id, places.size());
  const auto place = [&](const SequencePtr& sequence) {
    const auto known = places.find(sequence->result.id);
    return known == places.end() ? places.size() : known->second;
  };
  std::ranges::stable_sort(waiting_, {}, place);
}

void Scheduler::pause(Sequence* sequence) {
  SequencePtr one = take_out(running_index(sequence));
  paused_.emplace(one->result.id, std::move(one));
  count_running();
}

Scheduler::SequencePtr Scheduler::take_paused(uint64_t id) {
  auto one = paused_.extract(id);
  ASSERT(!one.empty());
  return std::move(one.mapped());
}

void Scheduler::resume(uint64_t id, std::span<const int32_t> tokens,
                       std::function<bool(int32_t)> stop) {
  SequencePtr one = take_paused(id);
  one->tokens.insert(one->tokens.end(), tokens.begin(), tokens.end());
  ASSERT(!tokens.empty() && one->length() < one->longest);
  Result& result = one->result;
  result.output_ids.insert(result.output_ids.end(), tokens.begin(), tokens.end());
  const size_t length = result.output_ids.size();
  result.log_probs.resize(length, 0.f);
  if (!result.sample_log_probs.empty()) result.sample_log_probs.resize(length, 0.f);
  result.versions.resize(length, -1);
  one->request.turn_begin = static_cast<int64_t>(length);
  one->request.stop = std::move(stop);
  waiting_.push_front(std::move(one));
}

Result Scheduler::finish(uint64_t id) {
  ++counters_.finished;
  return std::move(take_paused(id)->result);
}

int64_t Scheduler::cancel(uint64_t id) {
  if (paused_.contains(id)) return std::ssize(take_paused(id)->result.output_ids);
  const auto is_it = [id](const SequencePtr& sequence) { return sequence->result.id == id; };
  const auto running = std::ranges::find_if(running_, is_it);
  if (running != running_.end()) put_back(static_cast<size_t>(running - running_.begin()));
  const auto at = std::ranges::find_if(waiting_, is_it);
  ASSERT(at != waiting_.end());
  if ((*at)->group) leave_group(**at);
  const int64_t tokens = std::ssize((*at)->result.output_ids);
  waiting_.erase(at);
  count_running();
  return tokens;
}

void Scheduler::count_running() {
  counters_.pages_used = pool_.used();
  counters_.running = static_cast<int64_t>(running_.size());
}

void Scheduler::preempt_all() {
  while (!running_.empty()) preempt(running_.size() - 1);
  forget_shared();
}

void Scheduler::preempt_prompts() {
  for (size_t i = running_.size(); i-- > 0;) {
    Sequence& s = *running_[i];
    if (s.decoding()) {
      s.old_keys = true;
      counters_.old_tokens += s.computed;
    } else {
      preempt(i);
    }
  }
  forget_shared();
}

void Scheduler::forget_shared() {
  while (drop_one_group()) {}
  pool_.forget_contents();
  groups_.clear();
  for (const auto& sequence : waiting_) {
    sequence->group.reset();
    if (options_.sample_sharing && sequence->result.output_ids.empty()) begin_group(*sequence);
  }
}

}  // namespace trireme::generate
