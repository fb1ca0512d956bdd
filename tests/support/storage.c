// A file system that misbehaves, by LD_PRELOAD: calls on files whose path has one of some texts in it fail, take their time or never return.
//   STORAGE="trace.json|hf/"         texts of paths
//   STORAGE_DO=error:28|delay:200|block|short|kill   errno, milliseconds, for ever, half of the bytes (read and write), or the process ends before the call
//   STORAGE_OPS=write,fsync          open, read, write, fsync, close, mkdir, rename, exchange, truncate, link, unlink, allocate, stat, list; without it all
//   STORAGE_CALLS=2-3                only these of the calls that fit, counted from 1 in each process
//   STORAGE_WHILE=file               only while that file exists
//   STORAGE_RANK=1                   only on that rank
//   STORAGE_MARK=file                made at the first call that is struck
//   STORAGE_COUNT=file               without a STORAGE_DO: each process appends "operation calls" for what fits when it ends
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <dirent.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

// Read once, before the program has threads: MPI changes the environment while another thread of it already reads from sockets.
static struct {
  const char *paths, *deed, *operations, *calls, *marker, *rank, *mark, *count, *mine;
} set;

static const char* kept(const char* name) {
  const char* value = getenv(name);
  return value == NULL ? NULL : strdup(value);
}

__attribute__((constructor)) static void read_settings(void) {
  set.deed = kept("STORAGE_DO");
  set.operations = kept("STORAGE_OPS");
  set.calls = kept("STORAGE_CALLS");
  set.marker = kept("STORAGE_WHILE");
  set.rank = kept("STORAGE_RANK");
  set.mark = kept("STORAGE_MARK");
  set.count = kept("STORAGE_COUNT");
  set.mine = kept("OMPI_COMM_WORLD_RANK");
  set.paths = kept("STORAGE");
}

static void wait_ms(long ms) {
  struct timespec nap = {ms / 1000, ms % 1000 * 1000000};
  while (nanosleep(&nap, &nap) != 0) {
  }
}

static int has_one_of(const char* text, const char* list, char separator) {
  while (*list != '\0') {
    const char* end = strchrnul(list, separator);
    char part[256];
    const size_t length = (size_t)(end - list);
    if (length > 0 && length < sizeof part) {
      memcpy(part, list, length);
      part[length] = '\0';
      if (strstr(text, part) != NULL) return 1;
    }
    list = *end == '\0' ? end : end + 1;
  }
  return 0;
}

static atomic_long count;  // of calls that fit
static const char* const names[] = {"open", "read", "write", "fsync", "close", "mkdir", "rename", "exchange", "truncate", "link", "unlink", "allocate", "stat", "list"};
enum { operations_known = sizeof names / sizeof names[0] };
static atomic_long counts[operations_known];  // the same by operation

static void count_one(const char* operation) {
  for (int i = 0; i < operations_known; ++i) {
    if (strcmp(names[i], operation) == 0) atomic_fetch_add(&counts[i], 1);
  }
}

static int is_meant(const char* operation, const char* path) {
  if (set.paths == NULL || path == NULL || !has_one_of(path, set.paths, '|')) return 0;
  if (set.operations != NULL && !has_one_of(set.operations, operation, ',')) return 0;
  if (set.marker != NULL && syscall(SYS_access, set.marker, F_OK) != 0) return 0;
  if (set.rank != NULL && strcmp(set.rank, set.mine == NULL ? "0" : set.mine) != 0) return 0;
  long first = 0;
  long last = 0;
  count_one(operation);
  const long number = atomic_fetch_add(&count, 1) + 1;
  if (set.calls == NULL || sscanf(set.calls, "%ld-%ld", &first, &last) != 2) return 1;
  return number >= first && number <= last;
}

// 1: the call must fail; errno is set then. 2: it does half of its work.
static int strikes(const char* operation, const char* path) {
  if (!is_meant(operation, path) || set.deed == NULL) return 0;
  const char* deed = set.deed;
  if (set.mark != NULL) syscall(SYS_close, syscall(SYS_openat, AT_FDCWD, set.mark, O_WRONLY | O_CREAT, 0644));
  if (strcmp(deed, "short") == 0) return 2;
  if (strncmp(deed, "delay:", 6) == 0) wait_ms(atol(deed + 6));
  if (strcmp(deed, "block") == 0) {
    for (;;) wait_ms(1000);
  }
  if (strcmp(deed, "kill") == 0) raise(SIGKILL);
  if (strncmp(deed, "error:", 6) != 0) return 0;
  errno = atoi(deed + 6);
  return 1;
}

static int strikes_fd(const char* operation, int fd) {
  char link[64];
  char path[4096];
  if (set.paths == NULL) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t size = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
  if (size <= 0) return 0;
  path[size] = '\0';
  return strikes(operation, path);
}

__attribute__((destructor)) static void tell_count(void) {
  if (set.count == NULL || count == 0) return;
  const int fd = (int)syscall(SYS_openat, AT_FDCWD, set.count, O_WRONLY | O_CREAT | O_APPEND, 0644);
  for (int i = 0; fd >= 0 && i < operations_known; ++i) {
    char line[64];
    const int length = snprintf(line, sizeof line, "%s %ld\n", names[i], (long)counts[i]);
    syscall(SYS_write, fd, line, length);
  }
}

// Bytes that a call may move: all, some, or -1 for none.
static ssize_t allowed(const char* operation, int fd, size_t bytes) {
  const int verdict = strikes_fd(operation, fd);
  if (verdict == 1) return -1;
  return verdict == 2 && bytes > 1 ? (ssize_t)(bytes / 2) : (ssize_t)bytes;
}

#define OPEN(name)                                                     \
  int name(const char* path, int flags, ...) {                         \
    va_list more;                                                      \
    va_start(more, flags);                                             \
    const mode_t mode = va_arg(more, mode_t);                          \
    va_end(more);                                                      \
    return strikes("open", path) == 1 ? -1 : REAL(name)(path, flags, mode); \
  }
OPEN(open)
OPEN(open64)
#define OPENAT(name)                                                           \
  int name(int at, const char* path, int flags, ...) {                         \
    va_list more;                                                              \
    va_start(more, flags);                                                     \
    const mode_t mode = va_arg(more, mode_t);                                  \
    va_end(more);                                                              \
    return strikes("open", path) == 1 ? -1 : REAL(name)(at, path, flags, mode);     \
  }
OPENAT(openat)
OPENAT(openat64)

FILE* fopen(const char* path, const char* mode) { return strikes("open", path) == 1 ? NULL : REAL(fopen)(path, mode); }
FILE* fopen64(const char* path, const char* mode) { return strikes("open", path) == 1 ? NULL : REAL(fopen64)(path, mode); }
size_t fwrite(const void* from, size_t size, size_t count, FILE* file) {
  return strikes_fd("write", fileno(file)) == 1 ? 0 : REAL(fwrite)(from, size, count, file);
}
#define MOVE(name, operation, pointer, ...)                               \
  {                                                                       \
    const ssize_t bytes = allowed(operation, fd, n);                      \
    return bytes < 0 ? -1 : REAL(name)(fd, pointer, (size_t)bytes __VA_ARGS__); \
  }
ssize_t write(int fd, const void* from, size_t n) MOVE(write, "write", from)
ssize_t pwrite(int fd, const void* from, size_t n, off_t at) MOVE(pwrite, "write", from, , at)
ssize_t pwrite64(int fd, const void* from, size_t n, off64_t at) MOVE(pwrite64, "write", from, , at)
ssize_t read(int fd, void* into, size_t n) MOVE(read, "read", into)
ssize_t pread(int fd, void* into, size_t n, off_t at) MOVE(pread, "read", into, , at)
ssize_t pread64(int fd, void* into, size_t n, off64_t at) MOVE(pread64, "read", into, , at)
int fsync(int fd) { return strikes_fd("fsync", fd) == 1 ? -1 : REAL(fsync)(fd); }
int fdatasync(int fd) { return strikes_fd("fsync", fd) == 1 ? -1 : REAL(fdatasync)(fd); }
int ftruncate(int fd, off_t size) { return strikes_fd("truncate", fd) == 1 ? -1 : REAL(ftruncate)(fd, size); }
int ftruncate64(int fd, off64_t size) { return strikes_fd("truncate", fd) == 1 ? -1 : REAL(ftruncate64)(fd, size); }
int mkdir(const char* path, mode_t mode) { return strikes("mkdir", path) == 1 ? -1 : REAL(mkdir)(path, mode); }
int rename(const char* from, const char* to) { return strikes("rename", to) == 1 ? -1 : REAL(rename)(from, to); }
int link(const char* from, const char* to) { return strikes("link", to) == 1 ? -1 : REAL(link)(from, to); }
int renameat2(int at, const char* from, int to_at, const char* to, unsigned flags) {
  return strikes(flags & 2 ? "exchange" : "rename", to) == 1 ? -1 : REAL(renameat2)(at, from, to_at, to, flags);
}
int unlink(const char* path) { return strikes("unlink", path) == 1 ? -1 : REAL(unlink)(path); }
int rmdir(const char* path) { return strikes("unlink", path) == 1 ? -1 : REAL(rmdir)(path); }
int remove(const char* path) { return strikes("unlink", path) == 1 ? -1 : REAL(remove)(path); }
int unlinkat(int at, const char* path, int flags) { return strikes("unlink", path) == 1 ? -1 : REAL(unlinkat)(at, path, flags); }
int fallocate(int fd, int mode, off_t at, off_t size) { return strikes_fd("allocate", fd) == 1 ? -1 : REAL(fallocate)(fd, mode, at, size); }
int fallocate64(int fd, int mode, off64_t at, off64_t size) { return strikes_fd("allocate", fd) == 1 ? -1 : REAL(fallocate64)(fd, mode, at, size); }
#define STAT(name, kind) \
  int name(const char* path, struct kind* into) { return strikes("stat", path) == 1 ? -1 : REAL(name)(path, into); }
STAT(stat, stat)
STAT(stat64, stat64)
STAT(lstat, stat)
STAT(lstat64, stat64)
int fstatat(int at, const char* path, struct stat* into, int flags) { return strikes("stat", path) == 1 ? -1 : REAL(fstatat)(at, path, into, flags); }
int fstatat64(int at, const char* path, struct stat64* into, int flags) { return strikes("stat", path) == 1 ? -1 : REAL(fstatat64)(at, path, into, flags); }
int statvfs(const char* path, struct statvfs* into) { return strikes("stat", path) == 1 ? -1 : REAL(statvfs)(path, into); }
int statvfs64(const char* path, struct statvfs64* into) { return strikes("stat", path) == 1 ? -1 : REAL(statvfs64)(path, into); }
DIR* opendir(const char* path) { return strikes("list", path) == 1 ? NULL : REAL(opendir)(path); }
// Network file systems say at the end what they could not write.
int close(int fd) {
  const int failed = strikes_fd("close", fd) == 1;
  const int error = errno;
  const int result = REAL(close)(fd);
  if (failed) errno = error;
  return failed ? -1 : result;
}
