// What guards cost: time in work that computes nothing of the result and only looks for what goes
// wrong. summary.json and the end of the log have the sums.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace trireme::trace {

//   collectives  the ledger of what ranks have called, and its comparisons
//   liveness     the watchdog's thread
//   replicas     comparing what shard groups hold alike
//   inputs       digests of deck, data and models, and their comparison
//   read_back    reading parts of a checkpoint again before it counts
enum class Guard : uint8_t { collectives, liveness, replicas, inputs, read_back };

// The calling thread does this in its scope; the outermost counts. Waiting for other ranks in it
// counts too, so the sums are upper bounds. Costs two reads of the time-stamp counter and an atomic
// addition.
class Guarding {
 public:
  explicit Guarding(Guard guard);
  ~Guarding();
  Guarding(const Guarding&) = delete;
  Guarding& operator=(const Guarding&) = delete;

 private:
  Guard guard_;
  uint64_t begin_;
};

// For who measures by another clock. Seconds; any thread.
void add_guard_seconds(Guard guard, double seconds);

// Of this process since its start, by the guard's name.
std::map<std::string, double> guard_seconds();

}  // namespace trireme::trace
