// What a power loss leaves of the files under a folder, by LD_PRELOAD: data of a file are on the device when it was synced, a name when its folder
// was. Nothing else is. Each sync puts down what is durable from then on, so that a test can make the tree that a machine would come back with.
//   POWER_LOSS=folder        whose files are watched (a text in their path)
//   POWER_LOSS_LOG=folder    a file <device-inode-birth> of each synced file with its bytes, of each synced folder with a line per name: "key kind name"
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

// Inode numbers are used again; with the time of birth they are not.
static int key_of(int at, const char* name, int flags, char* key, size_t size, mode_t* mode) {
  struct statx now;
  if (statx(at, name, flags, STATX_BASIC_STATS | STATX_BTIME, &now) != 0) return -1;
  snprintf(key, size, "%llx-%llx-%llx", (unsigned long long)now.stx_ino, (unsigned long long)now.stx_btime.tv_sec,
           (unsigned long long)now.stx_btime.tv_nsec);
  *mode = now.stx_mode;
  return 0;
}

static void put_file(int fd, int out) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const int from = open(link, O_RDONLY | O_CLOEXEC);
  if (from < 0) return;
  char bytes[65536];
  for (ssize_t n; (n = read(from, bytes, sizeof bytes)) > 0;) {
    if (write(out, bytes, (size_t)n) != n) break;
  }
  close(from);
}

static void put_folder(int fd, int out) {
  const int again = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* folder = again < 0 ? NULL : fdopendir(again);
  if (folder == NULL) return;
  for (struct dirent* entry; (entry = readdir(folder)) != NULL;) {
    if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
    char key[80];
    mode_t mode = 0;
    if (key_of(fd, entry->d_name, AT_SYMLINK_NOFOLLOW, key, sizeof key, &mode) != 0) continue;
    char target[2048] = "";
    if (S_ISLNK(mode)) {
      const ssize_t length = readlinkat(fd, entry->d_name, target, sizeof target - 1);
      target[length > 0 ? length : 0] = '\0';
    }
    dprintf(out, "%s %c %s\t%s\n", key, S_ISDIR(mode) ? 'd' : S_ISLNK(mode) ? 'l' : 'f', entry->d_name, target);
  }
  closedir(folder);
}

// Read once, before the program has threads: MPI changes the environment beside one that reads and writes.
static const char *watched, *log_folder;
__attribute__((constructor)) static void read_settings(void) {
  const char* paths = getenv("POWER_LOSS");
  const char* folder = getenv("POWER_LOSS_LOG");
  watched = paths == NULL ? NULL : strdup(paths);
  log_folder = folder == NULL ? NULL : strdup(folder);
}

static void put_down(int fd) {
  if (watched == NULL || log_folder == NULL) return;
  char link[64];
  char path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t size = readlink(link, path, sizeof path - 1);
  if (size <= 0) return;
  path[size] = '\0';
  if (strstr(path, watched) == NULL) return;
  const int error = errno;
  char key[80];
  mode_t mode = 0;
  if (key_of(fd, "", AT_EMPTY_PATH, key, sizeof key, &mode) == 0) {
    static atomic_int number;
    char fresh[4500];
    char name[4500];
    snprintf(name, sizeof name, "%s/%s", log_folder, key);
    snprintf(fresh, sizeof fresh, "%s/.%d-%d", log_folder, (int)getpid(), atomic_fetch_add(&number, 1));
    const int out = open(fresh, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (out >= 0) {
      if (S_ISDIR(mode)) {
        put_folder(fd, out);
      } else {
        put_file(fd, out);
      }
      close(out);
      rename(fresh, name);
    }
  }
  errno = error;
}

int fsync(int fd) {
  const int result = REAL(fsync)(fd);
  if (result == 0) put_down(fd);
  return result;
}
int fdatasync(int fd) {
  const int result = REAL(fdatasync)(fd);
  if (result == 0) put_down(fd);
  return result;
}
