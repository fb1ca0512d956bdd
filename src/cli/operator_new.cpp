// The program's operator new: the standard one, except that it says how much could not be had.
// Sanitizers have their own.
#include <cstdlib>
#include <new>

#include "trireme/base/allocation.hpp"

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

// Its counterpart, operator delete, is the library's, which frees what malloc gave.
void* operator new(std::size_t bytes) {
  for (;;) {
    if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
    if (const std::new_handler handler = std::get_new_handler()) {
      handler();
      continue;
    }
    trireme::base::note_failed_new(bytes);
    throw std::bad_alloc();
  }
}

#endif
