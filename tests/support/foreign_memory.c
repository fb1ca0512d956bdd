// Ranks whose process numbers mean something else to each other (a PID namespace for each), by LD_PRELOAD: what one rank opens of another's descriptors
// is FOREIGN_FILE, as if the number were that of a process which has that file open.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const char* meant(const char* path) {
  int pid = 0;
  int fd = 0;
  const char* foreign = getenv("FOREIGN_FILE");
  return foreign != NULL && sscanf(path, "/proc/%d/fd/%d", &pid, &fd) == 2 && pid != getpid() ? foreign : path;
}

#define OPEN(name)                                                                            \
  int name(const char* path, int flags, ...) {                                                \
    va_list more;                                                                             \
    va_start(more, flags);                                                                    \
    const mode_t mode = va_arg(more, mode_t);                                                 \
    va_end(more);                                                                             \
    return ((__typeof__(&name))dlsym(RTLD_NEXT, #name))(meant(path), flags, mode);            \
  }
OPEN(open)
OPEN(open64)
