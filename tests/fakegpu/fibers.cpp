#include "fakegpu/fibers.hpp"

#include <sys/mman.h>

#include <cstdint>
#include <new>

// Null in programs without that sanitizer.
extern "C" {
[[gnu::weak]] void __sanitizer_start_switch_fiber(void** frames, const void* bottom, size_t bytes);
[[gnu::weak]] void __sanitizer_finish_switch_fiber(void* frames, const void** bottom,
                                                   size_t* bytes);
[[gnu::weak]] void __asan_unpoison_memory_region(const volatile void* data, size_t bytes);
[[gnu::weak]] void* __tsan_get_current_fiber(void);
[[gnu::weak]] void* __tsan_create_fiber(unsigned flags);
[[gnu::weak]] void __tsan_destroy_fiber(void* fiber);
[[gnu::weak]] void __tsan_switch_to_fiber(void* fiber, unsigned flags);
}

namespace trireme::fakegpu {
namespace {

constexpr size_t guard_bytes = 16384;
constexpr size_t stack_bytes = 131072;

// The compiler's own jumps: the C library's ask the system for the signal mask each time. Functions
// of their own, as these demand.
[[noreturn, gnu::noinline]] void jump(void** to) { __builtin_longjmp(to, 1); }
[[gnu::noinline]] void change(void** from, void** to) {
  if (__builtin_setjmp(from) == 0) jump(to);
}
[[gnu::noinline]] void change_to_start(void** from, const ucontext_t& start) {
  if (__builtin_setjmp(from) == 0) setcontext(&start);
}

}  // namespace

Fiber::Fiber() {
  void* memory = mmap(nullptr, guard_bytes + stack_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  mprotect(memory, guard_bytes, PROT_NONE);
  stack_ = static_cast<std::byte*>(memory) + guard_bytes;
  getcontext(&start_);
  start_.uc_stack.ss_sp = stack_;
  start_.uc_stack.ss_size = stack_bytes;
  start_.uc_link = nullptr;
  const auto address = reinterpret_cast<uintptr_t>(this);
  makecontext(&start_, reinterpret_cast<void (*)()>(run), 2, static_cast<unsigned>(address >> 32),
              static_cast<unsigned>(address));
  if (__tsan_create_fiber != nullptr) thread_ = __tsan_create_fiber(0);
}

Fiber::~Fiber() {
  if (thread_ != nullptr) __tsan_destroy_fiber(thread_);
  if (__asan_unpoison_memory_region != nullptr) __asan_unpoison_memory_region(stack_, stack_bytes);
  munmap(stack_ - guard_bytes, guard_bytes + stack_bytes);
}

void Fiber::begin(const std::function<void()>& function) { function_ = &function; }

void Fiber::resume() {
  if (thread_ != nullptr) {
    thread_of_caller_ = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(thread_, 0);
  }
  if (__sanitizer_start_switch_fiber != nullptr)
    __sanitizer_start_switch_fiber(&frames_of_caller_, stack_, stack_bytes);
  if (started_) {
    change(caller_, place_);
  } else {
    started_ = true;
    change_to_start(caller_, start_);
  }
  if (__sanitizer_finish_switch_fiber != nullptr)
    __sanitizer_finish_switch_fiber(frames_of_caller_, nullptr, nullptr);
}

void Fiber::arrive() {
  if (__sanitizer_finish_switch_fiber != nullptr)
    __sanitizer_finish_switch_fiber(frames_, &stack_of_caller_, &bytes_of_caller_);
}

void Fiber::stop() {
  if (thread_ != nullptr) __tsan_switch_to_fiber(thread_of_caller_, 0);
  if (__sanitizer_start_switch_fiber != nullptr)
    __sanitizer_start_switch_fiber(&frames_, stack_of_caller_, bytes_of_caller_);
  change(place_, caller_);
  arrive();
}

// On its own stack; serves one function after the other.
void Fiber::run(unsigned high, unsigned low) {
  Fiber& fiber = *reinterpret_cast<Fiber*>(static_cast<uintptr_t>(high) << 32 | low);
  fiber.arrive();
  while (true) {
    (*fiber.function_)();
    fiber.function_ = nullptr;
    fiber.stop();
  }
}

}  // namespace trireme::fakegpu
