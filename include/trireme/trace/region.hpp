// Regions, counters and instants, recorded by every rank all the time. A region costs tens of
// nanoseconds: two reads of the time-stamp counter, one uncontended lock, no allocation once its
// place in the call tree exists.
//
// Each thread has its own call tree (totals, never lost) and its own event buffer (for trace.json,
// bounded): when the buffer is full, the shorter half of its regions is dropped and counted, so
// long runs keep their coarse structure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace trireme::trace {

// Kind of a region's time; the table and the notes treat communication and wait apart.
//   phase          a part of an iteration as metrics.jsonl names it; also records memory
//   work           anything else (default)
//   communication  MPI, NCCL, shared-window exchange; on the main thread it is exposed
//   communication wait           idle until another role or rank is ready io             files
//   kernel         single kernels, recorded only after record_kernels(true)
enum class Category : uint8_t { phase, work, communication, wait, io, kernel };
const char* to_string(Category category);

// A string literal without '/' (which separates the levels of a path): checked by the compiler.
class Name {
 public:
  template <size_t N>
  consteval Name(const char (&literal)[N]) : text_(literal) {  // implicit: Region r{"rollout"}
    for (const char c : literal) {
      if (c == '/') throw "a region's name contains '/'";
    }
  }
  const char* c_str() const { return text_; }

 private:
  const char* text_;
};

inline constexpr int64_t no_argument = INT64_MIN;

// Times the scope it lives in, and is a place for injected faults (base/fault_point.hpp). Not
// movable; must end on the thread it began on, in reverse order of beginning.
//   trace::Region region{"rollout", iteration, trace::Category::phase};
//   trace::Region region{"all_gather", trace::no_argument, trace::Category::communication, bytes};
class Region {
 public:
  explicit Region(Name name, int64_t argument = no_argument, Category category = Category::work,
                  int64_t bytes = 0);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  // For amounts known only inside the region.
  void add_bytes(int64_t bytes) { bytes_ += bytes; }

 private:
  void end();

  const char* name_;
  uint64_t begin_;
  int64_t argument_;
  int64_t bytes_;
  int32_t parent_;  // node of the call tree to go back to; not_recorded: a kernel region that is
                    // switched off
  Category category_;
};

// A phase of the iteration: Region with Category::phase.
class Phase : public Region {
 public:
  explicit Phase(Name name, int64_t argument = no_argument)
      : Region(name, argument, Category::phase) {}
};

// A sample of a quantity over time, e.g. counter("kv_pages", used).
void counter(Name name, double value);
// A moment, e.g. instant("stop requested").
void instant(Name name, int64_t argument = no_argument);

// Adds to a total of the run, for what must not grow unseen: bytes copied, tokens computed.
// summary.json has the sums over ranks. Any thread.
void count(Name name, int64_t more);
std::map<std::string, int64_t> counts();

// Names the calling thread in trace.json. The process's first thread is "main".
void name_thread(const char* name);

// Off: no events for trace.json; the totals go on. Default on.
void record_events(bool on);
// Whether Category::kernel regions count. Default off.
void record_kernels(bool on);
// Events a thread may keep; default 65,536 (3 MiB).
void set_capacity(size_t events_per_thread);

// Seconds per phase name of the calling thread since its last reset_phases(), finished regions
// only; a phase inside another counts in both. For metrics.jsonl.
std::map<std::string, double> phase_seconds();
void reset_phases();

// Where the main thread is now, "iteration 12 > train > optimizer 3"; callable from any thread
// (watchdog, crash report).
std::string where();
// For who catches an exception on the main thread: where() at the place that it came from, as far
// as the regions tell that it has left.
std::string where_it_failed();

// Bytes that this process holds, and the most that it held.
struct Memory {
  int64_t resident = 0;
  int64_t peak = 0;
};
// From /proc/self/status: VmRSS, and the largest VmHWM that was read so far: Linux keeps both per
// CPU and may report less later.
Memory host_memory();
// Device memory for the table and phase_memory(); nullptr: none.
void set_device_memory_source(Memory (*source)());

// The most that this process is known to have held in a phase since start, by name: the process'
// peak where it was reached inside, else what the phase began or ended with. Of the calling
// thread's phases. For metrics.jsonl.
struct PhaseMemory {
  int64_t host = 0;
  int64_t device = 0;
};
std::map<std::string, PhaseMemory> phase_memory();

// Forwards regions to NVTX (Nsight Systems); false when this build has no NVTX.
bool forward_to_nvtx();

// Forgets everything recorded; open regions of other threads must not exist. For tests.
void clear();

}  // namespace trireme::trace
