// Who runs in the next step and on which pages. Decides by arrival order and page counts alone,
// never by time, so all tensor-parallel ranks take the same decisions.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "cache_rules.hpp"
#include "page_pool.hpp"
#include "sequence.hpp"
#include "step_backend.hpp"
#include "trireme/generate/engine.hpp"

namespace trireme::generate {

// The rows of one sequence in a step.
struct PlannedRows {
  Sequence* sequence = nullptr;
  int64_t rows = 0;
  bool draws = false;                  // its last row's logits give the next token
  std::vector<int32_t> proposed = {};  // guesses behind its last token; the last rows are theirs,
                                       // and each draws what follows it
};

struct StepPlan {
  std::vector<PlannedRows> rows;
  std::vector<Sequence*>
      forked;  // began from a group's pages: their next token comes from the group's logits
};

class Scheduler {
 public:
  // `copy_page` copies the cache content of one page to another.
  Scheduler(const EngineOptions& options, int64_t pages,
            std::function<void(int32_t from, int32_t to)> copy_page, CacheRules rules = {});

  // Prompts begin when so many sequences can begin at once, or all that wait: steps with prompts
  // cost more than others. Samples of a prompt that is computed do not wait. 1 at first.
  void begin_together(int64_t sequences) { together_ = sequences; }
  // `longest`: tokens that the sequence can have, the prompt's included.
  void add(Request request, int64_t longest);
  // Takes back preempted work, admits new sequences, gives pages to all rows of the step. The
  // result stays valid until the next call of plan(), retire() or preempt_all().
  StepPlan plan();
  // After the forward pass of a plan: records what was computed, but for guesses. `logits_of` keeps
  // a planned row's logits.
  void computed(const StepPlan& plan, const std::function<KeptLogits(const Sequence&)>& logits_of);
  // The sequence's last token is what was guessed: its keys and values are in the pages.
  void accept(Sequence& sequence);
  // After a sequence's last token of a step: `accepted` of `proposed` guesses were right. Pages of
  // the others go back.
  void settle(Sequence& sequence, int64_t proposed, int64_t accepted);
  // A finished sequence leaves; its result is returned.
  Result retire(Sequence* sequence);
  // A running sequence gives its pages and its slot up until resume() or finish(). Pages that the
  // index has stay there until others need them.
  void pause(Sequence* sequence);
  // It continues after `tokens`, before sequences that have not begun.
  void resume(uint64_t id, std::span<const int32_t> tokens, std::function<bool(int32_t)> stop);
  Result finish(uint64_t id);
  // A sequence leaves before it is finished; how many tokens of it were written.
  int64_t cancel(uint64_t id);
  // All running sequences go back to the queue, shared pages and the index are dropped: other
  // weights, or memory given back. Behind it all is as if the sequences had been added now, in the
  // order of the queue.
  void preempt_all();

  // The same, but for sequences that decode: these go on with the keys and values that they have,
  // which they share with nobody new.
  void preempt_prompts();

  bool idle() const { return waiting_.empty() && running_.empty(); }
  std::vector<Result> standing() const;
  std::vector<uint64_t> queue() const;
  std::vector<uint64_t> longer(int64_t tokens) const;
  void arrange(std::span<const uint64_t> order);
  int64_t unfinished() const {
    return static_cast<int64_t>(waiting_.size() + running_.size() + paused_.size());
  }
  const PagePool& pool() const { return pool_; }
  EngineCounters& counters() { return counters_; }
  const EngineCounters& counters() const { return counters_; }

 private:
  using SequencePtr = std::unique_ptr<Sequence>;
  enum class Admission : uint8_t { admitted, later, no_room };

  void admit(StepPlan& plan);
  bool prompts_begin(int64_t prefill) const;
  Admission try_admit(Sequence& sequence, StepPlan& plan);
  void fork(Sequence& sequence);
  bool prefix_in_progress(const Sequence& sequence) const;
  void take_known_prefix(Sequence& sequence);
  std::span<const int32_t> page_tokens(const Sequence& sequence, int64_t page) const;
  void plan_rows(StepPlan& plan);
  void count_room();
  void count_running();
  void propose(StepPlan& plan);
  int64_t rows_with_pages(Sequence& sequence, int64_t rows);
  bool give_pages(Sequence& sequence, int64_t rows, size_t index);
  std::optional<int32_t> page_or_preempt(size_t index);
  bool drop_one_group();
  void preempt(size_t index);
  void forget_shared();
  SequencePtr take_out(size_t index);
  SequencePtr take_paused(uint64_t id);
  void put_back(size_t index);
  size_t running_index(const Sequence* sequence) const;
  void put_back_other_rotations();
  void release_unseen(Sequence& sequence);
  void begin_group(Sequence& sequence);
  void leave_group(Sequence& sequence);
  void drop_group_pages(PromptGroup& group);
  void publish(Sequence& sequence);
  void release_pages(std::vector<int32_t>& pages);
  int64_t pages_for(int64_t tokens) const {
    return (tokens + options_.page_size - 1) / options_.page_size;
  }

  EngineOptions options_;
  int64_t together_ = 1;
  PagePool pool_;
  std::function<void(int32_t, int32_t)> copy_page_;
  CacheRules rules_;
  std::deque<SequencePtr> waiting_;
  std::vector<SequencePtr> running_;        // in order of admission
  std::map<uint64_t, SequencePtr> paused_;  // by id; they hold no pages
  std::unordered_map<uint64_t, std::vector<std::shared_ptr<PromptGroup>>>
      groups_;                                              // by hash of the prompt
  std::vector<std::shared_ptr<PromptGroup>> ready_groups_;  // that hold pages, oldest first
  EngineCounters counters_;
};

}  // namespace trireme::generate
