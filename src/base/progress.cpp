#include "trireme/base/progress.hpp"

#include <atomic>

namespace trireme::base {
namespace {
std::atomic<uint64_t> count{0};
}

void tick() noexcept { count.fetch_add(1, std::memory_order_relaxed); }
uint64_t ticks_so_far() noexcept { return count.load(std::memory_order_relaxed); }

}  // namespace trireme::base
