#include "trireme/base/allocation.hpp"

#include <array>
#include <atomic>
#include <charconv>
#include <limits>
#include <mutex>
#include <new>
#include <string_view>
#include <utility>

#include "trireme/base/error.hpp"
#include "trireme/base/text.hpp"

namespace trireme::base {
namespace {

std::atomic<std::size_t> last_failed_new{0};

struct Advice {
  std::mutex mutex;
  AllocationAdvice function;
};
Advice& advice_of_process() {
  static Advice one;
  return one;
}

// "2.50 GiB", "8589934592 bytes": what stands behind `marker`; 0 where nothing can be read.
int64_t bytes_behind(std::string_view text, std::string_view marker) {
  const size_t at = text.find(marker);
  if (at == std::string_view::npos) return 0;
  text.remove_prefix(at + marker.size());
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{}) return 0;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  constexpr std::array<std::pair<std::string_view, double>, 4> units{
      {{" KiB", 1024.0},
       {" MiB", 1024.0 * 1024},
       {" GiB", 1024.0 * 1024 * 1024},
       {" TiB", 1024.0 * 1024 * 1024 * 1024}}};
  for (const auto& [unit, size] : units) {
    if (text.starts_with(unit)) number *= size;
  }
  constexpr auto largest = static_cast<double>(std::numeric_limits<int64_t>::max());
  return number < largest ? static_cast<int64_t>(number) : std::numeric_limits<int64_t>::max();
}

}  // namespace

std::optional<FailedAllocation> failed_allocation(const std::exception& error) {
  if (dynamic_cast<const UserError*>(&error) != nullptr) return std::nullopt;
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr)
    return FailedAllocation{false, static_cast<int64_t>(last_failed_new.load())};
  const std::string_view what = error.what();
  if (what.find("CUDA out of memory") != std::string_view::npos)
    return FailedAllocation{true, bytes_behind(what, "Tried to allocate ")};
  if (what.find("cudaErrorMemoryAllocation") != std::string_view::npos ||
      what.find("CUDA error: out of memory") != std::string_view::npos) {
    return FailedAllocation{true, 0};
  }
  if (what.find("can't allocate memory") != std::string_view::npos ||
      what.find("not enough memory") != std::string_view::npos) {
    return FailedAllocation{false, bytes_behind(what, "you tried to allocate ")};
  }
  return std::nullopt;
}

void note_failed_new(std::size_t bytes) noexcept { last_failed_new = bytes; }

void advise_on_allocations(AllocationAdvice advice) {
  const std::lock_guard lock(advice_of_process().mutex);
  advice_of_process().function = std::move(advice);
}

std::string describe(const FailedAllocation& failure, const std::string& where) noexcept try {
  const std::string amount =
      failure.bytes > 0 ? human_bytes(static_cast<double>(failure.bytes)) + " of " : std::string{};
  std::string out =
      text("out of memory: ", amount, failure.device ? "GPU memory" : "host memory",
           " could not be had", where.empty() ? std::string{} : text(" (", where, ")"));
  const std::lock_guard lock(advice_of_process().mutex);
  if (!advice_of_process().function)
    return out + ": use smaller batches, a smaller model or more nodes";
  try {
    return out + advice_of_process().function(failure, where);
  } catch (const std::exception&) {  // memory is what is missing
    return out;
  }
} catch (const std::exception&) { return "out of memory"; }

}  // namespace trireme::base
