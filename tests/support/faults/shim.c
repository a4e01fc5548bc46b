/* Makes one process's disk fail and its wall clock jump, when told. For LD_PRELOAD.
 *
 * GPUSHARE_SHIM names a small file that is mapped and read at each call, so a test changes
 * the world while the process runs; GPUSHARE_SHIM_DISK is the directory whose files fail.
 * Boot and monotonic time are never touched.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum disk { WELL, FULL, READ_ONLY, IO_ERROR, TORN };

struct control {
  volatile int64_t wall_offset; /* nanoseconds */
  volatile int32_t disk;
  volatile int32_t writes_left; /* until a torn write */
};

static struct control *control;
static const char *directory;

__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("GPUSHARE_SHIM");
  directory = getenv("GPUSHARE_SHIM_DISK");
  int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
  if (fd < 0)
    return;
  void *at = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (at != MAP_FAILED)
    control = at;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int64_t wall_offset(void) { return control ? control->wall_offset : 0; }

int clock_gettime(clockid_t clock, struct timespec *time) {
  static __typeof__(&clock_gettime) real;
  if (!real)
    real = REAL(clock_gettime);
  int result = real(clock, time);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
    int64_t nanoseconds = (int64_t)time->tv_sec * 1000000000 + time->tv_nsec + wall_offset();
    time->tv_sec = nanoseconds / 1000000000;
    time->tv_nsec = nanoseconds % 1000000000;
  }
  return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  struct timespec time;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &time);
  now->tv_sec = time.tv_sec;
  now->tv_usec = time.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *out) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out)
    *out = now.tv_sec;
  return now.tv_sec;
}

static int is_below(const char *path) {
  return directory && strncmp(path, directory, strlen(directory)) == 0;
}

static enum disk disk_of(int fd) {
  if (!control || control->disk == WELL || !directory)
    return WELL;
  char link[64], path[PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0)
    return WELL;
  path[length] = 0;
  return is_below(path) ? (enum disk)control->disk : WELL;
}

static int refuse(enum disk disk) {
  errno = disk == FULL ? ENOSPC : disk == READ_ONLY ? EROFS : EIO;
  return -1;
}

/* Whether this write shall be the last thing the process does, and only half of it. */
static int tears(enum disk disk) {
  return disk == TORN && __sync_sub_and_fetch(&control->writes_left, 1) == 0;
}

#define WRITER(name, offset_type)                                                        \
  ssize_t name(int fd, const void *data, size_t size, offset_type offset) {              \
    static __typeof__(&name) real;                                                       \
    if (!real)                                                                           \
      real = REAL(name);                                                                 \
    enum disk disk = disk_of(fd);                                                        \
    if (disk == WELL || disk == TORN) {                                                  \
      if (!tears(disk))                                                                  \
        return real(fd, data, size, offset);                                             \
      real(fd, data, size / 2, offset);                                                  \
      kill(getpid(), SIGKILL);                                                           \
    }                                                                                    \
    return refuse(disk);                                                                 \
  }
WRITER(pwrite, off_t)
WRITER(pwrite64, off64_t)

ssize_t write(int fd, const void *data, size_t size) {
  static __typeof__(&write) real;
  if (!real)
    real = REAL(write);
  enum disk disk = disk_of(fd);
  return disk == WELL || disk == TORN ? real(fd, data, size) : refuse(disk);
}

#define SYNCER(name)                                                                     \
  int name(int fd) {                                                                     \
    static __typeof__(&name) real;                                                       \
    if (!real)                                                                           \
      real = REAL(name);                                                                 \
    enum disk disk = disk_of(fd);                                                        \
    return disk == IO_ERROR ? refuse(disk) : real(fd);                                   \
  }
SYNCER(fsync)
SYNCER(fdatasync)

#define OPENER(name)                                                                     \
  int name(const char *path, int flags, ...) {                                           \
    static int (*real)(const char *, int, ...);                                          \
    if (!real)                                                                           \
      real = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, #name);                   \
    va_list rest;                                                                        \
    va_start(rest, flags);                                                               \
    mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, mode_t) : 0;            \
    va_end(rest);                                                                        \
    if (control && control->disk == READ_ONLY && (flags & O_ACCMODE) != O_RDONLY &&      \
        is_below(path))                                                                  \
      return refuse(READ_ONLY);                                                          \
    return real(path, flags, mode);                                                      \
  }
OPENER(open)
OPENER(open64)
