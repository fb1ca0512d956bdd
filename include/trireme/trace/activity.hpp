// Signs of life for watchdogs, and what the main thread is at; callable from any thread.
#pragma once

#include <cstdint>
#include <string>

namespace trireme::trace {

// Regions that the main thread has begun or ended so far, and ticks (base/progress.hpp). Stands still while the process makes no progress.
uint64_t activity();

// What the main thread is at.
struct Standing {
  std::string where;     // as where()
  bool waiting = false;  // for other ranks: inside a Collective, or the innermost region is communication or wait
  bool io = false;       // some open region is of Category::io
  std::string call;      // "all_reduce of 8 B on world, the 4711th": the Collective it is in; empty: in none
};
Standing standing();

// The calling thread waits for other ranks in this scope. Only the main thread's are kept; the outermost counts.
class Collective {
 public:
  // `name` and `communicator` must outlive the scope.
  Collective(const char* name, const char* communicator, int64_t bytes);
  ~Collective();
  Collective(const Collective&) = delete;
  Collective& operator=(const Collective&) = delete;

 private:
  bool counts_;
};

}  // namespace trireme::trace
