// Inside of the fake GPU: streams, events, and the order that they promise.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fakegpu/fake_gpu.hpp"

namespace trireme::fakegpu {

// How much of each timeline is certain to be over: [0] the host's own, [i] the operations of stream
// i.
using Clock = std::vector<uint64_t>;
void merge(Clock& into, const Clock& other);
uint64_t at(const Clock& clock, size_t timeline);

struct EventState {
  uint64_t recorded = 0;  // how often
  uint64_t reached = 0;   // the last of these that its stream came to
  Clock clock;
  std::chrono::steady_clock::time_point when;  // its stream came to it last
};

// Operations that nobody waited for yet, and what they use.
class Order {
 public:
  // Whatever of these ranges was used before must be over by `clock`.
  void add(size_t timeline, const Clock& clock, const std::string& what,
           const std::vector<Range>& ranges);
  void end(const void* data, size_t bytes, const Clock& clock);  // the memory is freed, by the host
  void forget(const Clock& over);  // all later operations come after these
  void find(std::string what) { findings_.push_back(std::move(what)); }
  std::vector<std::string> take_findings() { return std::exchange(findings_, {}); }

 private:
  struct Use {
    size_t timeline;
    uint64_t count;
    std::string what;
    Range range;
  };
  std::vector<Use> uses_;
  std::vector<std::string> findings_;
};

struct Machine {
  std::mutex mutex;
  std::condition_variable changed;
  Clock host;
  Order order;
  std::vector<CUstream_st*> streams;
  size_t timelines = 1;
  Delays delays;
  int device = 0;  // of this process: the one that it was told to use
  std::string bus_id = "0000:01:00.0";
  bool hides_peers = false;  // other processes' devices, as control groups do
  std::optional<Edge> edge;
  std::map<std::pair<Edge::Call, std::string>, int> calls;  // within the present scope
  const char* during = "";
  int left_out = 0;
};
Machine& machine();  // never destroyed: threads of streams use it until the process ends

// The last error of this thread, as CUDA keeps it.
cudaError_t fail(cudaError_t error);

// What a stream does. `keeps` is kept by the recording that takes it, if one does.
struct Operation {
  std::string what;
  std::vector<Range> ranges;
  std::function<void()> begins = [] {};  // when it is put into a stream, each time
  std::function<void()> body;
  std::shared_ptr<void> keeps = nullptr;
};
// Puts an operation at the end of a stream (null: the legacy default stream), or into the recording
// that is made of it. A recording that another thread than its own adds to is of no use: CUDA may
// allow it, no other program is known to try.
void enqueue(cudaStream_t stream, Operation operation);
// Waits until a stream is through; all of them.
void drain(cudaStream_t stream);
void drain_all();
// The same, behind the program's back: what it does next is not promised to come later.
void settle();
// A random time of at most that long.
void dawdle(std::minstd_rand& random, int longest_us);

bool on_device(const void* data, size_t bytes);  // within one allocation
int64_t bytes_at(const void* data);              // of the allocation that begins there
void poison(void* data, size_t bytes);
cudaError_t allocate(void** data, size_t bytes);
// Frees what allocate() gave; false for anything else. Operations that may still use it are
// findings.
bool release(void* data);

}  // namespace trireme::fakegpu

struct CUgraph_st {
  std::vector<trireme::fakegpu::Operation> operations;
};

struct CUstream_st {
  explicit CUstream_st(bool is_legacy);
  ~CUstream_st();

  const bool legacy;
  size_t timeline = 0;
  trireme::fakegpu::Clock clock;
  std::deque<std::function<void()>> queue;  // the first one may be running
  bool ends = false;
  std::minstd_rand random;
  std::thread thread;

  struct Capture {
    std::thread::id by = std::this_thread::get_id();
    bool broken = false;
    CUgraph_st graph;
  };
  std::unique_ptr<Capture> capture;  // while it is recorded

 private:
  void work();
};

struct CUevent_st {
  std::shared_ptr<trireme::fakegpu::EventState> state =
      std::make_shared<trireme::fakegpu::EventState>();
};
