// Signs of life for watchdogs, and what the main thread is at; callable from any thread.
#pragma once

#include <cstdint>
#include <string>

namespace trireme::trace {

// Regions that the main thread has begun or ended so far, collectives of any thread, and ticks
// (base/progress.hpp). Stands still while the process makes no progress.
uint64_t activity();

// Activity of the main thread, or of the thread that it waits for.
struct Standing {
  std::string where;     // as where()
  bool waiting = false;  // for other ranks: inside a Collective, or the innermost region is
                         // communication or wait
  bool io = false;   // some open region is of Category::io, or a file is at work (base::FileWork)
  std::string call;  // "all_reduce of 8 B on world, the 4711th": the Collective it is in; "write of
                     // /a/b": the file; empty: neither
};
Standing standing();

// Which of this process' threads the calling one is.
int this_thread();

// The main thread waits for the work of another one in this scope: where that thread is counts for
// it. `thread`: as this_thread() told it there; -1: none.
class WaitForThread {
 public:
  explicit WaitForThread(int thread);
  ~WaitForThread();
  WaitForThread(const WaitForThread&) = delete;
  WaitForThread& operator=(const WaitForThread&) = delete;

 private:
  bool counts_;
};

// The calling thread waits for other ranks in this scope. The outermost of a thread counts.
class Collective {
 public:
  // `name` and `communicator` must outlive the scope.
  Collective(const char* name, const char* communicator, int64_t bytes);
  ~Collective();
  Collective(const Collective&) = delete;
  Collective& operator=(const Collective&) = delete;
};

}  // namespace trireme::trace
