#include "fakegpu/blocks.hpp"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "fakegpu/fibers.hpp"
#include "fakegpu/machine.hpp"

namespace trireme::fakegpu {

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace {

constexpr unsigned warp_size = 32;

struct Thread {
  enum class State : uint8_t { ready, at_barrier, at_shuffle, ended };
  Fiber fiber;
  State state = State::ready;
  std::source_location at;  // where it waits
  int barriers = 0;         // that it came to
  unsigned lanes = 0;       // of the shuffle
  unsigned by = 0;
  uint64_t value = 0;
};

std::string where(const std::source_location& at) {
  return std::string(at.file_name()) + ":" + std::to_string(at.line());
}

class Runner {
 public:
  void set(const BlockOrder& order) {
    const std::lock_guard lock(mutex_);
    order_ = order;
    random_.seed(order.seed);
    most_barriers_ = 0;
  }
  int most_barriers() {
    const std::lock_guard lock(mutex_);
    return most_barriers_;
  }

  void run(const std::string& kernel, const dim3& blocks, unsigned threads,
           const std::function<void()>& body) {
    const std::lock_guard lock(mutex_);
    kernel_ = kernel;
    count_ = threads;
    blockDim = dim3(threads);
    gridDim = blocks;
    while (threads_.size() < threads) threads_.push_back(std::make_unique<Thread>());
    std::vector<unsigned> order(static_cast<size_t>(blocks.x) * blocks.y * blocks.z);
    std::iota(order.begin(), order.end(), 0u);
    std::shuffle(order.begin(), order.end(), random_);
    for (const unsigned block : order) {
      block_ = block;
      blockIdx = {block % blocks.x, block / blocks.x % blocks.y, block / blocks.x / blocks.y};
      if (!run_block(body)) return;
    }
  }

  void barrier(const std::source_location& at) {
    if (thread_->barriers++ == order_.left_out) return;
    wait(Thread::State::at_barrier, at);
  }

  uint64_t shuffle(unsigned lanes, uint64_t value, unsigned by, const std::source_location& at) {
    thread_->lanes = lanes;
    thread_->by = by;
    thread_->value = value;
    wait(Thread::State::at_shuffle, at);
    return thread_->value;
  }

 private:
  using State = Thread::State;

  void wait(State state, const std::source_location& at) {
    Thread& mine = *thread_;
    mine.state = state;
    mine.at = at;
    mine.fiber.stop();
  }

  // False: not all of its threads came to their end.
  bool run_block(const std::function<void()>& body) {
    ready_.assign((count_ + warp_size - 1) / warp_size, {});
    at_barrier_ = ended_ = 0;
    for (unsigned i = 0; i < count_; ++i) {
      Thread& thread = *threads_[i];
      thread.state = State::ready;
      thread.barriers = 0;
      thread.fiber.begin(body);
      ready_[i / warp_size].push_back(i);
    }
    while (ended_ < count_) {
      if (!choose_warp()) {
        report_stuck();
        threads_.clear();
        return false;
      }
      go_on(take_of_warp());
    }
    return true;
  }

  // The last warp goes on most of the time, so that it gets far ahead of the others; in one block
  // of four each turn is drawn.
  bool choose_warp() {
    const auto has_ready = [this](size_t warp) { return !ready_[warp].empty(); };
    const bool keeps =
        warp_ < ready_.size() && has_ready(warp_) && (block_ % 4 != 0 && random_() % 32 != 0);
    if (keeps) return true;
    const size_t first = random_() % ready_.size();
    for (size_t i = 0; i < ready_.size(); ++i) {
      warp_ = (first + i) % ready_.size();
      if (has_ready(warp_)) return true;
    }
    return false;
  }
  unsigned take_of_warp() {
    auto& ready = ready_[warp_];
    std::swap(ready[random_() % ready.size()], ready.back());
    const unsigned thread = ready.back();
    ready.pop_back();
    return thread;
  }

  void go_on(unsigned index) {
    thread_ = threads_[index].get();
    threadIdx = {index, 0, 0};
    thread_->fiber.resume();
    most_barriers_ = std::max(most_barriers_, thread_->barriers);
    if (thread_->fiber.ended()) {
      thread_->state = State::ended;
      ++ended_;
    } else if (thread_->state == State::at_barrier) {
      ++at_barrier_;
    } else {
      end_shuffle(index / warp_size * warp_size, thread_->lanes);
    }
    if (at_barrier_ > 0 && at_barrier_ + ended_ == count_) end_barrier();
  }

  void make_ready(unsigned index) {
    threads_[index]->state = State::ready;
    ready_[index / warp_size].push_back(index);
  }

  void end_barrier() {
    if (ended_ > 0)
      find(std::to_string(ended_) + " of " + std::to_string(count_) +
           " threads ended, the others wait for a barrier");
    const Thread *first = nullptr, *other = nullptr;
    for (unsigned i = 0; i < count_; ++i) {
      const Thread& thread = *threads_[i];
      if (thread.state == State::ended) continue;
      if (first == nullptr) first = &thread;
      if (thread.at.line() != first->at.line()) other = &thread;
      make_ready(i);
    }
    if (other != nullptr)
      find("threads wait for barriers at " + where(first->at) + " and " + where(other->at));
    at_barrier_ = 0;
  }

  bool shuffles(unsigned thread) const {
    return thread < count_ && threads_[thread]->state == State::at_shuffle;
  }

  // All lanes at once, when the last one is there.
  void end_shuffle(unsigned first, unsigned lanes) {
    const auto among = [lanes](unsigned lane) { return (lanes >> lane & 1u) != 0; };
    for (unsigned lane = 0; lane < warp_size; ++lane) {
      if (among(lane) && !(shuffles(first + lane) && threads_[first + lane]->lanes == lanes))
        return;
    }
    uint64_t values[warp_size] = {};
    for (unsigned lane = 0; lane < warp_size; ++lane) {
      if (among(lane)) values[lane] = threads_[first + lane]->value;
    }
    for (unsigned lane = 0; lane < warp_size; ++lane) {
      if (!among(lane)) continue;
      Thread& thread = *threads_[first + lane];
      const unsigned source = lane + thread.by;
      if (source < warp_size && !among(source))
        find("lane " + std::to_string(lane) + " asks one that is not in its shuffle at " +
             where(thread.at));
      if (source < warp_size) thread.value = values[source];
      make_ready(first + lane);
    }
  }

  void report_stuck() {
    std::string what = "waits for ever:";
    for (unsigned i = 0; i < count_; ++i) {
      const Thread& thread = *threads_[i];
      const bool as_before = i > 0 && threads_[i - 1]->state == thread.state &&
                             threads_[i - 1]->at.line() == thread.at.line();
      if (thread.state == State::ended || as_before) continue;
      what +=
          " thread " + std::to_string(i) +
          (thread.state == State::at_barrier ? " for the barrier at " : " for the shuffle at ") +
          where(thread.at);
    }
    find(what);
  }

  void find(const std::string& what) {
    const std::lock_guard lock(machine().mutex);
    machine().order.find("block " + std::to_string(block_) + " of " + kernel_ + ": " + what);
  }

  std::mutex mutex_;
  BlockOrder order_;
  std::minstd_rand random_;
  int most_barriers_ = 0;
  std::string kernel_;
  std::vector<std::unique_ptr<Thread>> threads_;  // the first count_ are the block's
  unsigned count_ = 0, block_ = 0;
  std::vector<std::vector<unsigned>> ready_;  // threads of each warp
  unsigned at_barrier_ = 0, ended_ = 0;
  size_t warp_ = 0;
  Thread* thread_ = nullptr;  // the one that runs
};

Runner& runner() {
  static auto* runner = new Runner;  // never destroyed, as the streams
  return *runner;
}

std::string readable(const std::type_info& kernel) {
  int status = 0;
  char* text = abi::__cxa_demangle(kernel.name(), nullptr, nullptr, &status);
  const std::string out = status == 0 ? text : kernel.name();
  std::free(text);
  return out;
}

}  // namespace

void set_block_order(const BlockOrder& order) { runner().set(order); }
int most_barriers() { return runner().most_barriers(); }
void wait_for_block(const std::source_location& at) { runner().barrier(at); }
uint64_t from_lane_above(unsigned lanes, uint64_t value, unsigned by,
                         const std::source_location& at) {
  return runner().shuffle(lanes, value, by, at);
}

cudaError_t launch_blocks(const cudaLaunchConfig_t& config, const std::type_info& kernel,
                          std::function<void()> thread) {
  constexpr unsigned most_threads = 1024, most_blocks = 2147483647, most_blocks_up = 65535;
  const auto [x, y, z] = config.gridDim;
  const dim3& threads = config.blockDim;
  if (x == 0 || y == 0 || z == 0 || x > most_blocks || y > most_blocks_up || z > most_blocks_up)
    return fail(cudaErrorInvalidConfiguration);
  if (threads.x == 0 || threads.x > most_threads) return fail(cudaErrorInvalidConfiguration);
  if (threads.y != 1 || threads.z != 1 || config.dynamicSmemBytes != 0 || config.numAttrs != 0)
    return fail(cudaErrorNotSupported);
  return launch(config.stream, {},
                [blocks = config.gridDim, threads = threads.x, name = readable(kernel),
                 body = std::move(thread)] { runner().run(name, blocks, threads, body); });
}

}  // namespace trireme::fakegpu
