// What collectives a rank has called on a communicator. MPI does not notice ranks that call
// different ones: it gives wrong data, an error on one of them, or hangs. Every so many calls the
// ranks compare; a difference ends the job with the first call that differs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace trireme::comm {

class Ledger {
 public:
  struct Entry {
    char operation[16] = "";
    int64_t count = 0;  // elements; 0 where ranks may differ
    int32_t type = 0;   // element type and reduction
    int32_t root = -1;
  };
  // Calls that are kept, so that a comparison can name them.
  static constexpr int64_t kept = 256;

  void note(const char* operation, int64_t count, int type, int root);
  // Whether the call noted last is one behind which all ranks compare.
  bool due() const;
  int64_t calls() const { return calls_; }
  uint64_t hash() const { return hash_; }  // of all calls so far
  // The last `kept` calls, call n at n % kept.
  const std::array<Entry, kept>& last() const { return entries_; }

  // "all_reduce of 4 elements (type 3)"
  static std::string describe(const Entry& entry);

 private:
  int64_t calls_ = 0;
  uint64_t hash_ = 0;
  std::array<Entry, kept> entries_{};
};

}  // namespace trireme::comm
