// A node with little memory, by LD_PRELOAD: MemAvailable of /proc/meminfo is SMALL_NODE_MB.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static FILE* made_up(const char* mode) {
  char text[128];
  const long long kilobytes = atoll(getenv("SMALL_NODE_MB")) * 1024;
  const int size = snprintf(text, sizeof text, "MemTotal: %lld kB\nMemFree: %lld kB\nMemAvailable: %lld kB\n", kilobytes, kilobytes, kilobytes);
  const int fd = memfd_create("meminfo", 0);
  if (fd < 0 || write(fd, text, (size_t)size) != size || lseek(fd, 0, SEEK_SET) != 0) return NULL;
  return fdopen(fd, mode);
}

static FILE* opened(const char* name, const char* path, const char* mode) {
  if (getenv("SMALL_NODE_MB") != NULL && strcmp(path, "/proc/meminfo") == 0) return made_up(mode);
  FILE* (*real)(const char*, const char*) = (FILE * (*)(const char*, const char*)) dlsym(RTLD_NEXT, name);
  return real(path, mode);
}

FILE* fopen(const char* path, const char* mode) { return opened("fopen", path, mode); }
FILE* fopen64(const char* path, const char* mode) { return opened("fopen64", path, mode); }
