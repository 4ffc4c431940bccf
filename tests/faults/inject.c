/* Makes system calls of a process fail, for the tests: LD_PRELOAD=libinject.so.

   A fault is "CALL PATTERN NTH ERROR STICKY": the NTH call of that name on a path that matches the pattern (fnmatch)
   returns the error; where sticky, each later one does too. FAULTS holds some, with a ; after each, and fault_arm() adds
   more. Of the faults that match a call, each counts it. A "clock" (monotonic) or "clock-wall" is ERROR seconds later
   from its NTH reading on. FAULT_LOG and FAULT_ROOT, or fault_log(): each call on a path below the root is a line of the
   log, with + before its name where it was made to fail.
   FAULT_NETWORK=1: as on a network file system, a renamed file is gone for a moment before it is replaced, and
   attributes of a path below the root are up to a second old.

   Only what reaches the C library by name is seen; what Python, the C++ library and torch call does. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define MOST 400
static struct fault {
    char call[24], pattern[300];
    long nth;
    int error, sticky;
    atomic_long seen;
} faults[MOST];
static int count, log_file = -1, network;
static char log_root[PATH_MAX];

void fault_arm(const char *text) {
    for (; count < MOST; text++, count++) {
        struct fault *one = &faults[count];
        if (sscanf(text, "%23s %299s %ld %d %d", one->call, one->pattern, &one->nth, &one->error, &one->sticky) != 5) return;
        if (!(text = strchr(text, ';'))) { count++; return; }
    }
}

void fault_log(const char *file, const char *root) {
    int opened = syscall(SYS_openat, AT_FDCWD, file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    log_file = fcntl(opened, F_DUPFD_CLOEXEC, 700);
    syscall(SYS_close, opened);
    snprintf(log_root, sizeof log_root, "%s", root);
}

__attribute__((constructor)) static void begin(void) {
    const char *armed = getenv("FAULTS"), *log = getenv("FAULT_LOG"), *root = getenv("FAULT_ROOT");
    network = getenv("FAULT_NETWORK") != NULL;
    if (root) snprintf(log_root, sizeof log_root, "%s", root);
    if (log && root) fault_log(log, root);
    if (armed) fault_arm(armed);
}

static const char *absolute(const char *path, char *space) {
    if (!path) return "";
    if (path[0] == '/') return path;
    if (!getcwd(space, PATH_MAX)) return path;
    size_t length = strlen(space);
    snprintf(space + length, PATH_MAX - length, "/%s", path);
    return space;
}

static const char *opened(int file, char *space) {
    char link[40];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, space, PATH_MAX - 1);
    space[length > 0 ? length : 0] = 0;
    return space;
}

/* Whether this call fails; sets errno then. */
static int fails(const char *call, const char *path) {
    int before = errno, failed = 0;
    for (int i = 0; i < count; i++) {
        struct fault *one = &faults[i];
        if (strcmp(call, one->call) || fnmatch(one->pattern, path, 0)) continue;
        long now = atomic_fetch_add(&one->seen, 1) + 1;
        if (now == one->nth || (one->sticky && now > one->nth)) failed = one->error;
    }
    if (log_file >= 0 && !strncmp(path, log_root, strlen(log_root))) {
        char line[PATH_MAX + 40];
        int length = snprintf(line, sizeof line, "%d %s%s %s\n", getpid(), failed ? "+" : "", call, path);
        syscall(SYS_write, log_file, line, length);
    }
    errno = failed ? failed : before;
    return failed;
}

static int idle(void) { return !count && log_file < 0; }

/* Each call asks this first. */
#define FAILS_AT(call, path) (!idle() && fails(call, absolute(path, (char[PATH_MAX]){0})))
#define FAILS_ON(call, file) (!idle() && fails(call, opened(file, (char[PATH_MAX]){0})))

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        va_list more; va_start(more, flags); mode_t mode = va_arg(more, int); va_end(more); \
        return FAILS_AT("open", path) ? -1 : (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode); \
    }
#define OPENAT(name) \
    int name(int at, const char *path, int flags, ...) { \
        va_list more; va_start(more, flags); mode_t mode = va_arg(more, int); va_end(more); \
        return FAILS_AT("open", path) ? -1 : (int)syscall(SYS_openat, at, path, flags, mode); \
    }
OPEN(open) OPEN(open64) OPENAT(openat) OPENAT(openat64)

#define FOPEN(name) \
    FILE *name(const char *path, const char *mode) { \
        static FILE *(*real)(const char *, const char *); \
        if (FAILS_AT("open", path)) return NULL; \
        if (!real) real = (FILE *(*)(const char *, const char *))dlsym(RTLD_NEXT, #name); \
        return real(path, mode); \
    }
FOPEN(fopen) FOPEN(fopen64)

ssize_t write(int file, const void *data, size_t size) {
    return FAILS_ON("write", file) ? -1 : syscall(SYS_write, file, data, size);
}
ssize_t writev(int file, const struct iovec *parts, int count) {
    return FAILS_ON("write", file) ? -1 : syscall(SYS_writev, file, parts, count);
}
ssize_t read(int file, void *data, size_t size) {
    return FAILS_ON("read", file) ? -1 : syscall(SYS_read, file, data, size);
}
int fsync(int file) { return FAILS_ON("fsync", file) ? -1 : (int)syscall(SYS_fsync, file); }
int fdatasync(int file) { return FAILS_ON("fsync", file) ? -1 : (int)syscall(SYS_fdatasync, file); }
int close(int file) {
    int failed = FAILS_ON("close", file), error = errno;
    int closed = syscall(SYS_close, file); /* Linux releases it in any case */
    if (failed) errno = error;
    return failed ? -1 : closed;
}

void *mmap(void *at, size_t size, int access, int flags, int file, off_t offset) {
    int failed = file >= 0 ? FAILS_ON("mmap", file) : FAILS_AT("mmap", "/memory");
    return failed ? MAP_FAILED : (void *)syscall(SYS_mmap, at, size, access, flags, file, offset);
}
void *mmap64(void *at, size_t size, int access, int flags, int file, off_t offset) {
    return mmap(at, size, access, flags, file, offset);
}

int rename(const char *from, const char *to) {
    if (FAILS_AT("rename", to)) return -1;
    if (network && !syscall(SYS_unlinkat, AT_FDCWD, to, 0)) usleep(2000);
    return syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}
int link(const char *from, const char *to) {
    return FAILS_AT("link", to) ? -1 : (int)syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0);
}
int unlink(const char *path) { return FAILS_AT("unlink", path) ? -1 : (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0); }
int mkdir(const char *path, mode_t mode) {
    return FAILS_AT("mkdir", path) ? -1 : (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}
DIR *opendir(const char *path) {
    static DIR *(*real)(const char *);
    if (FAILS_AT("opendir", path)) return NULL;
    if (!real) real = (DIR *(*)(const char *))dlsym(RTLD_NEXT, "opendir");
    return real(path);
}

/* What a network file system answers: attributes that are up to a second old. */
static int attributes(const char *path, struct stat *into, int flags) {
    static struct { char path[256]; struct stat stat; long until; } known[64];
    static atomic_flag busy = ATOMIC_FLAG_INIT;
    static int next;
    if (!network || flags || strncmp(path, log_root, strlen(log_root)) || strlen(path) > 255)
        return syscall(SYS_newfstatat, AT_FDCWD, path, into, flags);
    struct timespec now;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    while (atomic_flag_test_and_set(&busy)) usleep(10);
    int result = -1, at = -1;
    for (int i = 0; i < 64; i++)
        if (known[i].until > now.tv_sec && !strcmp(known[i].path, path)) at = i;
    if (at >= 0) *into = known[at].stat, result = 0;
    else if (!(result = syscall(SYS_newfstatat, AT_FDCWD, path, into, flags))) {
        at = next++ % 64;
        strcpy(known[at].path, path), known[at].stat = *into, known[at].until = now.tv_sec + 1;
    }
    atomic_flag_clear(&busy);
    return result;
}
int stat(const char *path, struct stat *into) { return FAILS_AT("stat", path) ? -1 : attributes(path, into, 0); }
int stat64(const char *path, struct stat64 *into) { return stat(path, (struct stat *)into); }
int lstat(const char *path, struct stat *into) {
    return FAILS_AT("stat", path) ? -1 : attributes(path, into, AT_SYMLINK_NOFOLLOW);
}
int lstat64(const char *path, struct stat64 *into) { return lstat(path, (struct stat *)into); }

int clock_gettime(clockid_t clock, struct timespec *into) {
    int result = syscall(SYS_clock_gettime, clock, into);
    const char *call = clock == CLOCK_REALTIME ? "clock-wall" : clock == CLOCK_MONOTONIC ? "clock" : "";
    for (int i = 0; i < count; i++)
        if (!strcmp(faults[i].call, call) && atomic_fetch_add(&faults[i].seen, 1) + 1 >= faults[i].nth)
            into->tv_sec += faults[i].error;
    return result;
}
