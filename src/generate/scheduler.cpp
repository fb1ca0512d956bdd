#include "scheduler.hpp"

#include <algorithm>
#include <utility>

#include "prompt_lookup.hpp"
#include "trireme/base/error.hpp"
#include "trireme/config/options.hpp"

namespace trireme::generate {
namespace {

// How far down the queue a step looks for sequences that can begin, in units of the batch limit.
constexpr int64_t look_ahead = 4;

// Rows of a step up to which guesses are computed: as many as the products take with transposed
// weights in registers (kernels/decode_gemm_body.hpp, few_rows). At 135M, bf16 and AVX-512, a step
// of 8 rows takes 1.45 times as long as one of 1, of 12 rows 3 times.
constexpr int64_t rows_with_guesses = 8;

uint64_t prompt_hash(const std::vector<int32_t>& prompt) {
  uint64_t hash = prompt.size();
  for (const int32_t token : prompt) {
    hash = (hash ^ static_cast<uint32_t>(token)) * 0xD6E8FEB86659FD93ull;
    hash ^= hash >> 32;
  }
  return hash;
}

}  // namespace

Scheduler::Scheduler(const EngineOptions& options, int64_t pages,
                     std::function<void(int32_t, int32_t)> copy_page, CacheRules rules)
    : options_(options),
      pool_(pages, options.page_size),
      copy_page_(std::move(copy_page)),
      rules_(rules) {
  counters_.pages_total = pages;
}

void Scheduler::add(Request request, int64_t longest) {
  auto sequence = std::make_unique<Sequence>();
  sequence->longest = longest;
  sequence->guesses = options_.speculation_tokens;
  sequence->tokens = request.prompt;
  sequence->tokens.insert(sequence->tokens.end(), request.begun.output_ids.begin(),
                          request.begun.output_ids.end());
  sequence->result = std::exchange(request.begun, {});
  sequence->result.id = request.id;
  sequence->request = std::move(request);
  if (options_.sample_sharing && sequence->result.output_ids.empty()) begin_group(*sequence);
  waiting_.push_back(std::move(sequence));
}

void Scheduler::begin_group(Sequence& sequence) {
  auto& same_hash = groups_[prompt_hash(sequence.request.prompt)];
  for (const auto& group : same_hash) {
    if (group->prompt == sequence.request.prompt && group->adapter == sequence.request.adapter)
      sequence.group = group;
  }
  if (!sequence.group) {
    sequence.group = std::make_shared<PromptGroup>();
    sequence.group->prompt = sequence.request.prompt;
    sequence.group->adapter = sequence.request.adapter;
    same_hash.push_back(sequence.group);
  }
  ++sequence.group->waiting;
}

void Scheduler::leave_group(Sequence& sequence) {
  const std::shared_ptr<PromptGroup> group = std::move(sequence.group);
  sequence.group.reset();
  if (--group->waiting > 0) return;
  drop_group_pages(*group);
  const auto entry = groups_.find(prompt_hash(group->prompt));
  std::erase(entry->second, group);
  if (entry->second.empty()) groups_.erase(entry);
}

void Scheduler::drop_group_pages(PromptGroup& group) {
  release_pages(group.pages);
  group.logits.reset();
  std::erase_if(ready_groups_, [&](const auto& g) { return g.get() == &group; });
}

void Scheduler::release_pages(std::vector<int32_t>& pages) {
  // The end first: later parts of a prefix are of no use without the earlier ones, so they are the
  // first to be reused.
  for (auto page = pages.rbegin(); page != pages.rend(); ++page) {
    if (*page != no_page) pool_.release(*page);
  }
  pages.clear();
}

StepPlan Scheduler::plan() {
  StepPlan plan;
  put_back_other_rotations();
  admit(plan);
  plan_rows(plan);
  propose(plan);
  count_running();
  counters_.pages_peak = std::max(counters_.pages_peak, counters_.pages_used);
  return plan;
}

void Scheduler::admit(StepPlan& plan) {
  int64_t prefill = 0;  // tokens that running sequences still have to compute
  for (const auto& s : running_) prefill += s->decoding() ? 0 : s->pending();
  const auto limit = static_cast<size_t>(look_ahead * options_.max_batch);
  const bool prompts = prompts_begin(prefill);
  for (size_t i = 0; i < waiting_.size() && i < limit;) {
    if (static_cast<int64_t>(running_.size()) >= options_.max_batch ||
        prefill >= options_.prefill_chunk_tokens)
      return;
    const bool begins = prompts || (waiting_[i]->group && waiting_[i]->group->ready());
    const Admission admission = begins ? try_admit(*waiting_[i], plan) : Admission::later;
    if (admission == Admission::no_room) return;
    if (admission == Admission::later) {
      ++i;
      continue;
    }
    prefill += waiting_[i]->pending();
    running_.push_back(std::move(waiting_[i]));
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

Scheduler::Admission Scheduler::try_admit(Sequence& sequence, StepPlan& plan) {
  sequence.rotation = rules_.rotation_of(sequence.length());
  sequence.published = start_of(sequence.rotation, sequence.request.adapter);
  if (sequence.group && sequence.group->ready()) {
    // One page for the copy of the prompt's last page, or for the first token after it.
    if (pool_.available() == 0 && !running_.empty()) return Admission::no_room;
    fork(sequence);
    plan.forked.push_back(&sequence);
    return Admission::admitted;
  }
  if (sequence.group && sequence.group->leader != nullptr) return Admission::later;
  if (options_.prefix_sharing) {
    if (prefix_in_progress(sequence)) return Admission::later;
    take_known_prefix(sequence);
  }
  const int64_t needed =
      pages_for(sequence.length() + 1) - static_cast<int64_t>(sequence.pages.size());
  if (needed > pool_.available() && !running_.empty()) {
    release_pages(sequence.pages);
    sequence.forget_computed();
    return Admission::no_room;
  }
  counters_.shared_tokens += sequence.computed;
  if (sequence.group) {
    if (sequence.group->waiting > 1) {
      sequence.group->leader = &sequence;
    } else {
      leave_group(sequence);
    }
  }
  return Admission::admitted;
}

void Scheduler::fork(Sequence& sequence) {
  const PromptGroup& group = *sequence.group;
  sequence.pages = group.pages;
  for (const int32_t page : sequence.pages) {
    if (page != no_page) pool_.retain(page);
  }
  sequence.computed = sequence.prompt_length();
  sequence.published_pages = group.published_pages;
  sequence.published = group.published;
  sequence.prompt_logits = group.logits;
  counters_.shared_tokens += sequence.prompt_length();
}

std::span<const int32_t> Scheduler::page_tokens(const Sequence& sequence, int64_t page) const {
  return std::span(sequence.tokens)
      .subspan(static_cast<size_t>(page * options_.page_size),
               static_cast<size_t>(options_.page_size));
}

// The pages of the sequence's beginning that the index has. At least one token is left to compute:
// its logits are needed.
void Scheduler::take_known_prefix(Sequence& sequence) {
  const int64_t sharable = (sequence.length() - 1) / options_.page_size;
  while (sequence.published_pages < sharable) {
    const auto page =
        pool_.find(sequence.published, page_tokens(sequence, sequence.published_pages));
    if (!page) break;
    sequence.pages.push_back(*page);
    sequence.published = pool_.content_of(*page);
    ++sequence.published_pages;
  }
  sequence.computed = sequence.published_pages * options_.page_size;
}

// True when a running sequence is about to compute the first page that this one would compute.
bool Scheduler::prefix_in_progress(const Sequence& sequence) const {
  const int64_t sharable = (sequence.length() - 1) / options_.page_size;
  ContentId parent = start_of(rules_.rotation_of(sequence.length()), sequence.request.adapter);
  int64_t page = 0;
  while (page < sharable) {
    const auto content = pool_.peek(parent, page_tokens(sequence, page));
    if (!content) break;
    parent = *content;
    ++page;
  }
  if (page == sharable) return false;
  return std::any_of(running_.begin(), running_.end(), [&](const SequencePtr& other) {
    return !other->decoding() && other->published_pages == page && other->published == parent &&
           other->length() >= (page + 1) * options_.page_size &&
           std::ranges::equal(page_tokens(*other, page), page_tokens(sequence, page));
  });
}

void Scheduler::plan_rows(StepPlan& plan) {
  int64_t budget = options_.prefill_chunk_tokens;
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence& sequence = *running_[i];
    if (std::find(plan.forked.begin(), plan.forked.end(), &sequence) != plan.forked.end()) continue;
    const bool decoding = sequence.decoding();
    const int64_t rows = decoding ? 1 : std::min(sequence.pending(), budget);
    if (rows == 0) continue;
    if (!give_pages(sequence, rows, i)) {
      --i;  // it was preempted itself; it is the last one
      continue;
    }
    if (!decoding) budget -= rows;
    plan.rows.push_back({&sequence, rows, rows == sequence.pending()});
  }
  // A later sequence's preemption may have hit a forked one.
  std::erase_if(plan.forked, [&](const Sequence* s) {
    return std::none_of(running_.begin(), running_.end(),
                        [s](const SequencePtr& r) { return r.get() == s; });
  });
}

// While few sequences run, a step's time goes into reading weights, and rows beside theirs cost
// little.
void Scheduler::propose(StepPlan& plan) {
  const bool few = std::ssize(plan.rows) <= config::speculating_sequences;
  if (options_.speculation_tokens == 0 || !few ||
      !std::ranges::all_of(plan.rows, [](const PlannedRows& r) { return r.sequence->decoding(); }))
    return;
  int64_t room = rows_with_guesses - std::ssize(plan.rows), without = std::ssize(plan.rows);
  for (PlannedRows& planned : plan.rows) {
    Sequence& s = *planned.sequence;
    planned.proposed =
        look_up_continuation(s.tokens, std::min({s.guesses, s.longest - s.length() - 1,
                                                 room / without--, rules_.alike_from(s.length())}));
    planned.rows = rows_with_pages(s, 1 + std::ssize(planned.proposed));
    planned.proposed.resize(static_cast<size_t>(planned.rows - 1));
    room -= planned.rows - 1;
    counters_.proposed_tokens += planned.rows - 1;
  }
}

// As many of the rows to come as pages that nobody needs suffice for; the first has one.
int64_t Scheduler::rows_with_pages(Sequence& s, int64_t rows) {
  while (std::ssize(s.pages) < pages_for(s.computed + rows)) {
    const auto page = pool_.allocate();
    if (!page) return std::ssize(s.pages) * options_.page_size - s.computed;
    s.pages.push_back(*page);
  }
  return rows;
}

// Pages of its own for the rows to come. False: the sequence itself was preempted.
bool Scheduler::give_pages(Sequence& sequence, int64_t rows, size_t index) {
  const int64_t first = sequence.computed / options_.page_size,
                last = (sequence.computed + rows - 1) / options_.page_size;
  for (int64_t p = first; p <= last; ++p) {
    const auto at = static_cast<size_t>(p);
    const bool exists = at < sequence.pages.size();
    if (exists && pool_.references(sequence.pages[at]) == 1) continue;
    const auto page = page_or_preempt(index);
    if (!page) return false;
    if (!exists) {
      sequence.pages.push_back(*page);
    } else if (pool_.references(sequence.pages[at]) == 1) {
      pool_.release(*page);  // whoever shared it was preempted just now
    } else {
      copy_page_(sequence.pages[at], *page);
      pool_.release(sequence.pages[at]);
      sequence.pages[at] = *page;
      ++counters_.pages_copied;
    }
  }
  return true;
}

// A page for running sequence `index`. Short of pages it drops prompts kept for samples to come,
// then preempts the sequences admitted last; nothing when that is `index` itself.
std::optional<int32_t> Scheduler::page_or_preempt(size_t index) {
  for (;;) {
    if (auto page = pool_.allocate()) return page;
    if (drop_one_group()) continue;
    const size_t victim = running_.size() - 1;
    preempt(victim);
    if (victim == index) return std::nullopt;
  }
}

bool Scheduler::drop_one_group() {
  if (ready_groups_.empty()) return false;
  drop_group_pages(*std::shared_ptr<PromptGroup>(ready_groups_.front()));
  return true;
}

void Scheduler::preempt(size_t index) {
  put_back(index);
  ++counters_.preemptions;
}

// To the head of the queue, without its pages.
void Scheduler::put_back(size_t index) { waiting_.push_front(take_out(index)); }

// Of the running ones, without its pages.
Scheduler::SequencePtr Scheduler::take_out(size_t index) {
  SequencePtr sequence = std::move(running_[index]);
  running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(index));
  release_pages(sequence->pages);
  sequence->forget_computed();
  sequence->old_keys = false;
  sequence->prompt_logits.reset();
  if (sequence->group && sequence->group->leader == sequence.get())
    sequence->group->leader = nullptr;
  return sequence;
}

size_t Scheduler::running_index(const Sequence* sequence) const {
  const auto at = std::ranges::find(running_, sequence, &SequencePtr::get);
  ASSERT(at != running_.end());
  return static_cast<size_t>(at - running_.begin());
}

void Scheduler::computed(const StepPlan& plan,
                         const std::function<KeptLogits(const Sequence&)>& logits_of) {
  for (const PlannedRows& planned : plan.rows) {
    Sequence& s = *planned.sequence;
    const int64_t rows = planned.rows - std::ssize(planned.proposed);
    (s.decoding() ? counters_.decode_tokens : counters_.prefill_tokens) += rows;
    s.computed += rows;
    if (options_.prefix_sharing) publish(s);
    release_unseen(s);
    if (!s.group || s.computed < s.prompt_length()) continue;
    const std::shared_ptr<PromptGroup> group = s.group;
    group->leader = nullptr;
    leave_group(s);
    if (group->waiting == 0) continue;
    group->pages = s.pages;
    for (const int32_t page : group->pages) {
      if (page != no_page) pool_.retain(page);
    }
    group->published_pages = s.published_pages;
    group->published = s.published;
    group->logits = logits_of(s);
    ready_groups_.push_back(group);
  }
  for (Sequence* s : plan.forked) leave_group(*s);
  count_room();
}

void Scheduler::count_room() {
  counters_.page_room += pool_.used() * options_.page_size;
  for (const auto& s : running_)
    counters_.page_room_unused += std::ssize(s->pages) * options_.page_size - s->computed;
}

void Scheduler::publish(Sequence& s) {
  if (s.old_keys) return;
  while ((s.published_pages + 1) * options_.page_size <= s.computed) {
    const auto at = static_cast<size_t>(s.published_pages);
    s.published = pool_.publish(s.pages[at], s.published, page_tokens(s, s.published_pages));
    ++s.published_pages;
  }
}

void Scheduler::accept(Sequence& s) {
  ++counters_.decode_tokens;
  ++counters_.accepted_tokens;
  ++s.computed;
  if (options_.prefix_sharing) publish(s);
}

void Scheduler::settle(Sequence& s, int64_t proposed, int64_t accepted) {
  if (proposed == 0) return;
  s.guesses =
      std::min(options_.speculation_tokens, accepted == proposed ? 2 * proposed : accepted + 1);
  for (; std::ssize(s.pages) > pages_for(s.computed); s.pages.pop_back())
    pool_.release(s.pages.back());
  counters_.pages_used = pool_.used();
}

Result Scheduler::retire(Sequence* sequence) {
  const SequencePtr left = take_out(running_index(sequence));
  count_running();
  ++counters_.finished;
  return std::move(left->result);
}

}  // namespace trireme::generate
