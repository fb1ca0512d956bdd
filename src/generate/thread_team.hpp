// A few threads that live as long as the engine and meet at barriers many times per step. They spin
// briefly, then yield, then sleep: a spinning thread on a busy core costs a scheduler tick per
// barrier.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace trireme::generate {

class ThreadTeam {
 public:
  // `cpus`: the processor of each thread; the caller's thread is bound for the length of run()
  // only, since threads and child processes that start later inherit its binding. Empty: threads
  // may run on all processors of the process, whatever the caller's thread was bound to.
  explicit ThreadTeam(int threads, std::vector<int> cpus = {});
  ThreadTeam(const ThreadTeam&) = delete;
  ~ThreadTeam();

  int size() const { return static_cast<int>(workers_.size()) + 1; }
  // Calls body(thread) on every thread, 0 on the caller's; returns when all are done. The first
  // exception is rethrown.
  void run(const std::function<void(int)>& body);
  // All threads of the running body meet here, each with its number. Throws where another one has
  // thrown.
  void barrier(int thread);
  // The share of `thread` in [0, count), cut at multiples of `unit`.
  struct Range {
    int64_t first = 0;
    int64_t last = 0;
  };
  Range share(int thread, int64_t count, int64_t unit = 1) const;

 private:
  // Where some threads meet, on a pair of cache lines of its own.
  struct alignas(128) Meeting {
    std::atomic<int> arrived{0};
    std::atomic<uint32_t> passed{0};  // times that all were there
  };
  static constexpr int meeting_size =
      8;  // beyond it, the last of each group of so many meet for them

  void work(int thread);
  void call(int thread);
  template <class BeforePassing>
  void meet(Meeting& at, int count, BeforePassing&& before_passing);
  void bind_worker(int thread) const;

  std::vector<int> cpus_;
  std::vector<int> home_;  // processors of the process
  std::vector<std::thread> workers_;
  const std::function<void(int)>* body_ = nullptr;
  std::atomic<uint32_t> round_{0};  // a new value starts a body
  std::atomic<int> running_{0};     // workers that are not done with it
  std::vector<Meeting> groups_;     // of neighbouring threads
  Meeting of_groups_;
  std::atomic<bool> failed_{false};
  std::atomic<bool> leave_{false};
  std::mutex mutex_;
  std::exception_ptr error_;
};

}  // namespace trireme::generate
