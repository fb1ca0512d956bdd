// Records of this process's threads. Writers are the threads themselves, each in its
// own record; readers (table, trace.json, watchdog) take the record's lock, so a writer waits at
// most for a copy.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "trace/device_phases.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::trace {

struct Event {
  const char* name;
  uint64_t begin;  // ticks
  uint64_t end;
  int64_t argument;
  int64_t bytes;
  int32_t depth;
  Category category;
};

struct Instant {
  const char* name;
  uint64_t at;
  int64_t argument;
};

struct CounterSample {
  const char* name;
  uint64_t at;
  double value;
};

struct CounterTotal {
  const char* name;
  double max;
};

// A place in the call tree: a name under a parent.
struct Node {
  const char* name = "";
  int32_t parent = -1;
  int32_t first_child = -1;
  int32_t next_sibling = -1;
  int32_t depth = -1;  // root -1, outermost regions 0
  Category category = Category::work;
  int64_t calls = 0;
  uint64_t ticks = 0;
  uint64_t ticks_at_reset = 0;
  uint64_t longest = 0;
  int64_t bytes = 0;
  int64_t resident = 0;  // phases: most that was held, as far as known
  int64_t peak = 0;
  int64_t device = 0;
  int64_t peak_before = 0;  // of the process, when the phase began
  int64_t device_peak_before = 0;
  double device_seconds = 0;  // phases: between the device's coming to their begin and to their end
  double device_seconds_at_reset = 0;
  // While the region is open; written by the owner without the lock, hence through atomic_ref.
  uint64_t open_since = 0;  // 0: not open
  int64_t open_argument = no_argument;
};

class SpinLock {
 public:
  void lock() {
    while (flag_.test_and_set(std::memory_order_acquire)) std::this_thread::yield();
  }
  void unlock() { flag_.clear(std::memory_order_release); }

 private:
  std::atomic_flag flag_;
};

// The Collective that a thread is in. Read by the watchdog while the thread stands still in it; a
// torn mix of two is possible in passing and harmless.
struct Call {
  std::atomic<int> depth{0};
  std::atomic<const char*> name{""};
  std::atomic<const char*> communicator{""};
  std::atomic<int64_t> bytes{0};
  std::atomic<uint64_t> number{0};
};

class ThreadRecord {
 public:
  explicit ThreadRecord(int id) : id_(id) { clear(); }

  // By the owning thread. `enter` returns the node that was current.
  int32_t enter(const char* name, Category category, int64_t argument, uint64_t& begin);
  void leave(int32_t parent, const Event& event);
  void add_counter(const char* name, double value);
  void add_instant(const char* name, int64_t argument);

  // By anyone.
  struct Copy {
    int id = 0;
    std::string name;
    std::vector<Node> nodes;
    std::vector<Event> events;
    std::vector<Instant> instants;
    std::vector<CounterSample> counters;
    std::vector<CounterTotal> counter_totals;
    int64_t dropped = 0;
  };
  enum class What { totals, everything };
  Copy copy(What what);
  struct Standing {
    std::string path;
    Category innermost = Category::work;
    bool io = false;  // some open region is of Category::io
  };
  Standing standing_now();
  void set_name(std::string name);
  // Of the current node, at the begin and the end of a phase.
  void begin_phase(const Memory& host, const Memory& device);
  void end_phase(const Memory& host, const Memory& device);
  void add_device_seconds(int32_t node, double seconds);
  void add_event(const Event& event);  // of a lane that is no thread's: with a depth of its own
  int32_t current() const { return current_.load(std::memory_order_relaxed); }
  void clear();
  void reset_phases();
  int id() const { return id_; }

  std::atomic<bool> in_use{true};
  std::atomic<int> kernel_id{0};  // of the thread that has it
  Call call;

 private:
  int32_t child(int32_t parent, const char* name, Category category);
  int32_t add_child(int32_t parent, const char* name, Category category);
  void drop_shorter_half();
  void keep(const Event& event, int32_t depth);  // with the lock

  const int id_;
  SpinLock lock_;
  std::string name_;
  std::vector<Node> nodes_;  // [0] is the root
  std::vector<Event> events_;
  std::vector<Instant> instants_;
  std::vector<CounterSample> counters_;
  std::vector<CounterTotal> counter_totals_;
  std::atomic<int32_t> current_{0};
  int64_t dropped_ = 0;
};

// All threads that have recorded something. Lives until the process ends: threads may outlive
// static objects.
class Recorder {
 public:
  static Recorder& instance();
  ThreadRecord& this_thread();
  ThreadRecord& main_thread();
  std::vector<ThreadRecord*> threads();
  void clear();

  std::atomic<bool> events_on{true};
  std::atomic<bool> kernels_on{false};
  std::atomic<size_t> capacity{size_t{1} << 16};
  std::atomic<Memory (*)()> device_memory{nullptr};
  std::atomic<double> device_wait{0};
  double device_wait_taken = 0;
  DevicePhases device;
  // Where phases stand as the device came through them; made by the first call.
  ThreadRecord& device_lane();

 private:
  ThreadRecord& register_thread();
  std::mutex mutex_;
  std::vector<std::unique_ptr<ThreadRecord>> threads_;  // [0] is the main thread's
  ThreadRecord* device_lane_ = nullptr;                 // one of them
};

// Where regions are passed on to (NVTX); null: nowhere.
struct Forward {
  void (*push)(const char* name);
  void (*pop)();
};
extern std::atomic<const Forward*> forward;

}  // namespace trireme::trace
