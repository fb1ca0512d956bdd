// Which thread does which block of queries, and in what order blocks add to the gradients of keys
// and values.
#pragma once

#include <sched.h>

#include "kernels/training_attention_kernels.hpp"

namespace trireme::kernels {
namespace {

constexpr int64_t keys_at_once =
    256;  // whose gradients are added to between two looks at the other threads

// The end of the keys that a block whose own begin at `own` adds to next, of those from `key` to
// `end`.
constexpr int64_t end_of_turn(int64_t key, int64_t end, int64_t own) {
  const int64_t next = key + keys_at_once < end ? key + keys_at_once : end;
  return key < own && next > own ? own : next;
}

// The blocks of queries of a group's heads, which one thread or a team takes in order.
class Blocks {
 public:
  template <class T>
  Blocks(const AttentionForward<T>& a, AttentionTeam* team)
      : of_head_((a.tokens + attention_block - 1) / attention_block),
        count_(of_head_ * (a.heads / a.kv_heads)),
        alone_(team == nullptr) {
    if (!alone_) shared_ = team->shared();
    take();
  }
  bool left() const { return block_ < count_; }
  int64_t block() const { return block_; }
  void take() {
    block_ = alone_ ? own_next_++ : __atomic_fetch_add(shared_.next, 1, __ATOMIC_RELAXED);
  }
  int64_t head() const { return block_ / of_head_; }
  int64_t first() const { return block_ % of_head_ * attention_block; }  // query
  bool last() const { return block_ + 1 == count_; }

  float* dk() const { return shared_.dk; }
  float* dv() const { return shared_.dv; }
  // Gradients of the keys before `end` are added to in turn: those before this block's own come
  // after the block before, its own after the last block of the head before. -1: after none.
  int64_t comes_after(int64_t end) const {
    return end <= first() ? block_ - 1 : head() * of_head_ - 1;
  }
  void wait_for_keys(int64_t end) const {
    const int64_t before = alone_ ? -1 : comes_after(end);
    if (before < 0) return;
    for (int64_t spins = 0; __atomic_load_n(shared_.added + before, __ATOMIC_ACQUIRE) < end;
         ++spins) {
      if (spins > 100) sched_yield();
    }
  }
  void added_to_keys(int64_t end) const {
    if (!alone_) __atomic_store_n(shared_.added + block_, end, __ATOMIC_RELEASE);
  }

 private:
  int64_t of_head_, count_;
  bool alone_;
  AttentionTeam::Shared shared_{};
  int64_t own_next_ = 0, block_ = 0;
};

}  // namespace
}  // namespace trireme::kernels
