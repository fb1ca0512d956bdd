// How threads share the training attention of one long sequence: the program's own order of blocks
// and turns, on simulated clocks.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <vector>

#include "kernels/attention_blocks.hpp"
#include "trireme/kernels/decode_attention.hpp"

namespace trireme::kernels {
namespace {

// One thread: the products of a block and a chunk of keys, 64 queries by as many keys as the chunk
// has each, and then its turns of two more.
class Simulated {
 public:
  Simulated(const AttentionForward<float>& a, AttentionTeam* team, bool backward)
      : blocks_(a, team), added_(team->shared().added), backward_(backward) {}
  bool done() const { return !blocks_.left(); }
  double clock = 0, busy = 0;

  // One piece of work, if it may begin; `passed` [blocks]: when it was added to up to which key.
  bool advance(std::vector<std::deque<std::pair<int64_t, double>>>& passed) {
    const int64_t reach = blocks_.first() + attention_block,
                  end_of_chunk = std::min(chunk_ + key_chunk, reach);
    if (turn_ < 0) {
      work((backward_ ? 3. : 2.) * static_cast<double>(end_of_chunk - chunk_));
      turn_ = chunk_;
    } else if (backward_ && turn_ < end_of_chunk) {
      const int64_t end = end_of_turn(turn_, end_of_chunk, blocks_.first()),
                    before = blocks_.comes_after(end);
      if (before >= 0) {
        if (added_[before] < end) return false;
        const auto& times = passed[static_cast<size_t>(before)];
        clock = std::max(clock, std::find_if(times.begin(), times.end(), [&](const auto& t) {
                                  return t.first >= end;
                                })->second);
      }
      work(2. * static_cast<double>(end - turn_));
      blocks_.added_to_keys(end);
      passed[static_cast<size_t>(blocks_.block())].emplace_back(end, clock);
      turn_ = end;
    }
    if (turn_ >= 0 && (!backward_ || turn_ == end_of_chunk)) {
      turn_ = -1;
      chunk_ = end_of_chunk;
      if (chunk_ == reach) {
        chunk_ = 0;
        blocks_.take();
      }
    }
    return true;
  }

 private:
  void work(double cost) {
    clock += cost;
    busy += cost;
  }
  Blocks blocks_;
  int64_t* added_;
  bool backward_;
  int64_t chunk_ = 0, turn_ = -1;
};

// Work of all threads, beside their number times the time of the last one.
double efficiency(int64_t tokens, int64_t heads, int threads, bool backward) {
  const AttentionForward<float> a{nullptr, nullptr, nullptr, nullptr, nullptr,
                                  tokens,  heads,   1,       64,      1};
  AttentionTeam team(tokens, heads);
  std::deque<Simulated> all;
  for (int t = 0; t < threads; ++t) all.emplace_back(a, &team, backward);
  std::vector<std::deque<std::pair<int64_t, double>>> passed(
      static_cast<size_t>(heads * ((tokens + attention_block - 1) / attention_block)));
  for (;;) {
    std::vector<Simulated*> order;
    for (Simulated& thread : all) {
      if (!thread.done()) order.push_back(&thread);
    }
    if (order.empty()) break;
    std::stable_sort(order.begin(), order.end(),
                     [](const Simulated* x, const Simulated* y) { return x->clock < y->clock; });
    if (std::none_of(order.begin(), order.end(),
                     [&](Simulated* thread) { return thread->advance(passed); })) {
      ADD_FAILURE() << "all wait for each other";
      return 0;
    }
  }
  double busy = 0, last = 0;
  for (const Simulated& thread : all) {
    busy += thread.busy;
    last = std::max(last, thread.clock);
  }
  return busy / (threads * last);
}

TEST(AttentionSplit, OneLongSequenceKeepsAllThreadsBusy) {
  for (const bool backward : {false, true}) {
    EXPECT_DOUBLE_EQ(efficiency(16384, 3, 1, backward), 1);
    for (const int64_t heads : {1, 3, 8}) {
      for (const int threads : {2, 8})
        EXPECT_GE(efficiency(16384, heads, threads, backward), 0.8)
            << heads << " heads, " << threads << " threads";
    }
    EXPECT_GE(efficiency(16384, 4, 32, backward), 0.8);
  }
}

}  // namespace
}  // namespace trireme::kernels
