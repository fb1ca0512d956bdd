// A file server that does not answer once, by LD_PRELOAD: the first read at an offset of a file whose path has READ_ERROR in it fails with EIO.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int fails(int fd) {
  static int done = 0;
  const char* wanted = getenv("READ_ERROR");
  if (wanted == NULL || done) return 0;
  char link[64];
  char path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t size = readlink(link, path, sizeof path - 1);
  if (size <= 0) return 0;
  path[size] = '\0';
  if (strstr(path, wanted) == NULL) return 0;
  done = 1;
  errno = EIO;
  return 1;
}

static ssize_t read_or_fail(int fd, void* into, size_t bytes, off_t offset) {
  static ssize_t (*real)(int, void*, size_t, off_t) = NULL;
  if (real == NULL) real = (ssize_t(*)(int, void*, size_t, off_t))dlsym(RTLD_NEXT, "pread");
  return fails(fd) ? -1 : real(fd, into, bytes, offset);
}

ssize_t pread(int fd, void* into, size_t bytes, off_t offset) { return read_or_fail(fd, into, bytes, offset); }
ssize_t pread64(int fd, void* into, size_t bytes, off64_t offset) { return read_or_fail(fd, into, bytes, offset); }
