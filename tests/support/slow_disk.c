// A disk that takes its time, by LD_PRELOAD: fsync of a checkpoint's manifest (one a save) first sleeps for a random time.
//   SLOW_DISK_MS="300-1200"  bounds of the sleep
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void sleep_before_manifest(int fd) {
  const char* bounds = getenv("SLOW_DISK_MS");
  long low = 0;
  long high = 0;
  if (bounds == NULL || sscanf(bounds, "%ld-%ld", &low, &high) != 2 || high < low) return;
  char link[64];
  char path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t size = readlink(link, path, sizeof path - 1);
  if (size <= 0) return;
  path[size] = '\0';
  if (strstr(path, "/ckpt/") == NULL || strstr(path, "manifest.json") == NULL) return;
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  unsigned int seed = (unsigned int)now.tv_nsec ^ (unsigned int)getpid();
  const long milliseconds = low + (long)(rand_r(&seed) % (unsigned int)(high - low + 1));
  struct timespec nap = {milliseconds / 1000, milliseconds % 1000 * 1000000};
  while (nanosleep(&nap, &nap) != 0) {
  }
}

int fsync(int fd) {
  static int (*real)(int) = NULL;
  if (real == NULL) real = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
  sleep_before_manifest(fd);
  return real(fd);
}
