#include "trireme/trace/guards.hpp"

#include <array>
#include <atomic>

#include "trace/clock.hpp"

namespace trireme::trace {
namespace {

constexpr std::array names{"collectives", "liveness", "replicas", "inputs", "read_back"};

struct Spent {
  std::atomic<uint64_t> ticks{0};
  std::atomic<uint64_t> nanoseconds{0};
};
std::array<Spent, names.size()> spent;
thread_local int depth = 0;

Spent& of(Guard guard) { return spent.at(static_cast<size_t>(guard)); }

}  // namespace

Guarding::Guarding(Guard guard) : guard_(guard), begin_(ticks()) { ++depth; }

Guarding::~Guarding() {
  if (--depth == 0) of(guard_).ticks.fetch_add(ticks() - begin_, std::memory_order_relaxed);
}

void add_guard_seconds(Guard guard, double seconds) {
  of(guard).nanoseconds.fetch_add(static_cast<uint64_t>(seconds * 1e9), std::memory_order_relaxed);
}

std::map<std::string, double> guard_seconds() {
  const TickScale scale = TickScale::now();
  std::map<std::string, double> out;
  for (size_t i = 0; i < names.size(); ++i) {
    out[names[i]] = scale.duration(spent[i].ticks.load(std::memory_order_relaxed)) +
                    1e-9 * static_cast<double>(spent[i].nanoseconds.load());
  }
  return out;
}

}  // namespace trireme::trace
