// Memory that could not be had: recognised whatever threw, and told with its kind, its size, the
// place and what would need less.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>

namespace trireme::base {

struct FailedAllocation {
  bool device = false;  // of a GPU; else of the host
  int64_t bytes = 0;    // that were asked for; 0: not known
};

// nullopt for other errors. Knows std::bad_alloc and the messages of LibTorch's allocators; errors
// of our own (UserError) name themselves.
std::optional<FailedAllocation> failed_allocation(const std::exception& error);

// The program's operator new says so before it throws. Any thread.
void note_failed_new(std::size_t bytes) noexcept;

// Text that a process adds from its plan: it follows the message, beginning with a line break.
// `where` as trace::where(). One for the process; an empty function: none.
using AllocationAdvice =
    std::function<std::string(const FailedAllocation&, const std::string& where)>;
void advise_on_allocations(AllocationAdvice advice);

// "out of memory: 8.00 GiB of host memory could not be had (iteration 2 > train)" and the advice.
// Never throws.
std::string describe(const FailedAllocation& failure, const std::string& where) noexcept;

}  // namespace trireme::base
