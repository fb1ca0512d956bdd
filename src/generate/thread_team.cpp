#include "thread_team.hpp"

#include <algorithm>
#include <utility>

#include "trireme/base/error.hpp"
#include "trireme/job/core_share.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace trireme::generate {
namespace {

struct PeerFailed : std::exception {
  const char* what() const noexcept override { return "another thread of the team failed"; }
};

// Waits until `done()`: spins, then yields the core. Returns false after `patience` yields (0:
// never).
template <class Done>
bool spin_until(const Done& done, int patience) {
  constexpr int spins = 2000;
  for (int i = 0; i < spins; ++i) {
    if (done()) return true;
#if defined(__x86_64__)
    _mm_pause();
#endif
  }
  for (int i = 0; patience == 0 || i < patience; ++i) {
    if (done()) return true;
    std::this_thread::yield();
  }
  return false;
}

// Binds the caller's thread to the team's first processor while this lives.
class BoundHere {
 public:
  BoundHere(const std::vector<int>& cpus, const std::vector<int>& home)
      : home_(home), bound_(!cpus.empty()) {
    if (bound_) job::bind_this_thread({cpus.data(), 1});
  }
  BoundHere(const BoundHere&) = delete;
  ~BoundHere() {
    if (bound_) job::bind_this_thread(home_);
  }

 private:
  const std::vector<int>& home_;
  bool bound_;
};

}  // namespace

ThreadTeam::ThreadTeam(int threads, std::vector<int> cpus)
    : cpus_(std::move(cpus)),
      home_(job::cpus_of_process()),
      groups_(static_cast<size_t>((threads + meeting_size - 1) / meeting_size)) {
  EXPECT(cpus_.empty() || static_cast<int>(cpus_.size()) == threads);
  for (int t = 1; t < threads; ++t) workers_.emplace_back([this, t] { work(t); });
}

ThreadTeam::~ThreadTeam() {
  leave_ = true;
  round_.fetch_add(1);
  round_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadTeam::call(int thread) {
  try {
    (*body_)(thread);
  } catch (const PeerFailed&) {
  } catch (...) {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::current_exception();
    failed_ = true;
  }
}

void ThreadTeam::bind_worker(int thread) const {
  if (cpus_.empty()) {
    job::bind_this_thread(home_);
  } else {
    job::bind_this_thread({&cpus_[static_cast<size_t>(thread)], 1});
  }
}

void ThreadTeam::work(int thread) {
  bind_worker(thread);
  uint32_t seen = 0;
  for (;;) {
    const auto started = [&] { return round_.load(std::memory_order_acquire) != seen; };
    while (!started()) {
      if (!spin_until(started, 50)) round_.wait(seen);
    }
    ++seen;
    if (leave_) return;
    call(thread);
    running_.fetch_sub(1, std::memory_order_release);
  }
}

void ThreadTeam::run(const std::function<void(int)>& body) {
  body_ = &body;
  for (Meeting& group : groups_) group.arrived = 0;  // those who met when a body failed
  of_groups_.arrived = 0;
  failed_ = false;
  running_ = static_cast<int>(workers_.size());
  if (!workers_.empty()) {
    round_.fetch_add(1, std::memory_order_release);
    round_.notify_all();
  }
  {
    const BoundHere bound(cpus_, home_);
    call(0);
  }
  spin_until([&] { return running_.load(std::memory_order_acquire) == 0; }, 0);
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

// The last of `count` threads calls before_passing(), then all pass.
template <class BeforePassing>
void ThreadTeam::meet(Meeting& at, int count, BeforePassing&& before_passing) {
  const uint32_t round = at.passed.load(std::memory_order_acquire);
  if (at.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == count) {
    at.arrived.store(0, std::memory_order_relaxed);
    before_passing();
    at.passed.fetch_add(1, std::memory_order_release);
  } else {
    spin_until(
        [&] {
          return at.passed.load(std::memory_order_acquire) != round ||
                 failed_.load(std::memory_order_relaxed);
        },
        0);
  }
}

void ThreadTeam::barrier(int thread) {
  if (workers_.empty()) return;
  const int group = thread / meeting_size, groups = static_cast<int>(groups_.size());
  meet(groups_[static_cast<size_t>(group)], std::min(meeting_size, size() - group * meeting_size),
       [&] {
         if (groups > 1) meet(of_groups_, groups, [] {});
       });
  if (failed_.load(std::memory_order_relaxed)) throw PeerFailed{};
}

ThreadTeam::Range ThreadTeam::share(int thread, int64_t count, int64_t unit) const {
  const int64_t units = (count + unit - 1) / unit;
  const int64_t first = units * thread / size(), last = units * (thread + 1) / size();
  return {std::min(first * unit, count), std::min(last * unit, count)};
}

}  // namespace trireme::generate
