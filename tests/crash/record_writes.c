/* Records what a process writes below a directory, and makes one operation of it fail.

   LD_PRELOAD library.  `crash_watch` names the directory and the file of records: each is a header
   and then two paths and data, in the order in which the operations took effect; `power_loss.py`
   rebuilds from them what a loss of power may leave.  `crash_arm(n, how)` makes the n-th operation
   from now on fail with the error number `how`, or kills the process there if `how` is negative.  */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { WRITE = 1, TRUNCATE, SYNC, CREATE, UNLINK, RENAME, MKDIR, NOTE };

struct header {
    uint32_t kind, sure; /* sure: durable at once (O_DSYNC) */
    uint64_t inode, offset, length;
    uint32_t path, other;
};

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static int log_fd = -1;
static char directory[PATH_MAX];
static size_t directory_length;
static long left; /* operations until the one that fails; 0: none does */
static int how;
static long operations;

#define REAL(name) \
    static __typeof__(&name) real; \
    if (real == NULL) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static int below(const char *path) {
    return directory_length && strncmp(path, directory, directory_length) == 0
        && (path[directory_length] == '/' || path[directory_length] == 0);
}

/* The path of an open file, if it is below the directory and a file or a directory. */
static int path_of(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, path, PATH_MAX - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    return below(path);
}

/* The absolute path of a name, if it is below the directory. */
static int path_at(int at, const char *name, char *path) {
    if (name == NULL) return 0;
    if (name[0] == '/') {
        snprintf(path, PATH_MAX, "%s", name);
    } else if (at == AT_FDCWD) {
        char here[PATH_MAX];
        if (syscall(SYS_getcwd, here, sizeof here) < 0) return 0;
        if (snprintf(path, PATH_MAX, "%s/%s", here, name) >= PATH_MAX) return 0;
    } else {
        char here[PATH_MAX];
        if (!path_of(at, here)) return 0;
        if (snprintf(path, PATH_MAX, "%s/%s", here, name) >= PATH_MAX) return 0;
    }
    return below(path);
}

static uint64_t inode_of(const char *path) {
    struct stat status;
    if (syscall(SYS_newfstatat, AT_FDCWD, path, &status, AT_SYMLINK_NOFOLLOW) != 0) return 0;
    return status.st_ino;
}

static uint64_t inode_of_fd(int fd) {
    struct stat status;
    return syscall(SYS_newfstatat, fd, "", &status, AT_EMPTY_PATH) != 0 ? 0 : status.st_ino;
}

static void record(uint32_t kind, int sure, uint64_t inode, uint64_t offset, const char *path,
                   const char *other, const struct iovec *data, int count, size_t length) {
    if (log_fd < 0) return;
    struct header head = {kind, sure, inode, offset, length, strlen(path), strlen(other)};
    struct iovec parts[3] = {{&head, sizeof head}, {(void *)path, head.path},
                             {(void *)other, head.other}};
    syscall(SYS_writev, log_fd, parts, 3);
    for (int i = 0; i < count && length > 0; i++) {
        size_t size = data[i].iov_len < length ? data[i].iov_len : length;
        syscall(SYS_write, log_fd, data[i].iov_base, size);
        length -= size;
    }
}

/* Counts an operation; true when it is the one that fails. */
static int strikes(void) {
    operations++;
    if (left == 0 || --left != 0) return 0;
    if (how < 0) {
        syscall(SYS_kill, getpid(), SIGKILL);
        for (;;) pause();
    }
    errno = how;
    return 1;
}

void crash_arm(long n, int with) {
    pthread_mutex_lock(&lock);
    left = n, how = with, operations = 0;
    pthread_mutex_unlock(&lock);
}

long crash_operations(void) { return operations; }

/* -- data ------------------------------------------------------------------------------------- */

static ssize_t written(int fd, const struct iovec *data, int count, off_t offset, int appends,
                       const char *path, ssize_t done) {
    if (done > 0) {
        long flags = syscall(SYS_fcntl, fd, F_GETFL);
        int sure = flags >= 0 && (flags & O_DSYNC) != 0; /* O_SYNC contains it */
        if (appends) offset = (off_t)syscall(SYS_lseek, fd, 0, SEEK_CUR) - done;
        record(WRITE, sure, inode_of_fd(fd), offset, path, "", data, count, done);
    }
    return done;
}

#define WRITING(fd, data, count, offset, appends, call) \
    char path[PATH_MAX]; \
    if (!path_of(fd, path)) return call; \
    pthread_mutex_lock(&lock); \
    ssize_t done = strikes() ? -1 : written(fd, data, count, offset, appends, path, call); \
    pthread_mutex_unlock(&lock); \
    return done;

ssize_t write(int fd, const void *buffer, size_t size) {
    REAL(write);
    struct iovec data = {(void *)buffer, size};
    WRITING(fd, &data, 1, 0, 1, real(fd, buffer, size))
}

ssize_t pwrite(int fd, const void *buffer, size_t size, off_t offset) {
    REAL(pwrite);
    struct iovec data = {(void *)buffer, size};
    WRITING(fd, &data, 1, offset, 0, real(fd, buffer, size, offset))
}

ssize_t pwrite64(int fd, const void *buffer, size_t size, off64_t offset) {
    REAL(pwrite64);
    struct iovec data = {(void *)buffer, size};
    WRITING(fd, &data, 1, offset, 0, real(fd, buffer, size, offset))
}

ssize_t writev(int fd, const struct iovec *data, int count) {
    REAL(writev);
    WRITING(fd, data, count, 0, 1, real(fd, data, count))
}

ssize_t pwritev(int fd, const struct iovec *data, int count, off_t offset) {
    REAL(pwritev);
    WRITING(fd, data, count, offset, 0, real(fd, data, count, offset))
}

ssize_t pwritev64(int fd, const struct iovec *data, int count, off64_t offset) {
    REAL(pwritev64);
    WRITING(fd, data, count, offset, 0, real(fd, data, count, offset))
}

static int truncated(int fd, off_t size, const char *path, int done) {
    if (done == 0) record(TRUNCATE, 0, inode_of_fd(fd), size, path, "", NULL, 0, 0);
    return done;
}

#define CHANGING(found, call) \
    if (!(found)) return call; \
    pthread_mutex_lock(&lock); \
    int done = -1; \
    if (!strikes())

#define CHANGED \
    pthread_mutex_unlock(&lock); \
    return done;

int ftruncate(int fd, off_t size) {
    REAL(ftruncate);
    char path[PATH_MAX];
    CHANGING(path_of(fd, path), real(fd, size)) done = truncated(fd, size, path, real(fd, size));
    CHANGED
}

int ftruncate64(int fd, off64_t size) {
    REAL(ftruncate64);
    char path[PATH_MAX];
    CHANGING(path_of(fd, path), real(fd, size)) done = truncated(fd, size, path, real(fd, size));
    CHANGED
}

/* Space that is set aside makes the file longer, and nothing else. */
static int longer(int fd, off_t end, const char *path, int done) {
    struct stat status;
    if (done == 0 && syscall(SYS_newfstatat, fd, "", &status, AT_EMPTY_PATH) == 0
        && status.st_size >= end)
        record(TRUNCATE, 0, status.st_ino, status.st_size, path, "", NULL, 0, 0);
    return done;
}

int posix_fallocate(int fd, off_t offset, off_t length) {
    REAL(posix_fallocate);
    char path[PATH_MAX];
    CHANGING(path_of(fd, path), real(fd, offset, length))
        done = longer(fd, offset + length, path, real(fd, offset, length));
    else done = errno;
    CHANGED
}

int posix_fallocate64(int fd, off64_t offset, off64_t length) {
    REAL(posix_fallocate64);
    char path[PATH_MAX];
    CHANGING(path_of(fd, path), real(fd, offset, length))
        done = longer(fd, offset + length, path, real(fd, offset, length));
    else done = errno;
    CHANGED
}

static int synced(int fd, const char *path, int done) {
    if (done == 0) record(SYNC, 0, inode_of_fd(fd), 0, path, "", NULL, 0, 0);
    return done;
}

int fsync(int fd) {
    REAL(fsync);
    char path[PATH_MAX];
    CHANGING(path_of(fd, path), real(fd)) done = synced(fd, path, real(fd));
    CHANGED
}

int fdatasync(int fd) {
    REAL(fdatasync);
    char path[PATH_MAX];
    CHANGING(path_of(fd, path), real(fd)) done = synced(fd, path, real(fd));
    CHANGED
}

/* -- names ------------------------------------------------------------------------------------ */

static int opened(const char *path, int flags, uint64_t before, int fd) {
    if (fd < 0) return fd;
    if (before == 0) {
        if (flags & O_CREAT) record(CREATE, 0, inode_of_fd(fd), 0, path, "", NULL, 0, 0);
    } else if (flags & O_TRUNC) {
        record(TRUNCATE, 0, before, 0, path, "", NULL, 0, 0);
    }
    return fd;
}

#define OPENING(at, name, flags, call) \
    char path[PATH_MAX]; \
    mode_t mode = 0; \
    if (flags & (O_CREAT | O_TMPFILE)) { \
        va_list more; \
        va_start(more, flags); \
        mode = va_arg(more, mode_t); \
        va_end(more); \
    } \
    if (!(flags & (O_CREAT | O_TRUNC)) || !path_at(at, name, path)) return call; \
    pthread_mutex_lock(&lock); \
    int done = -1; \
    uint64_t before = inode_of(path); \
    if ((before != 0 && !(flags & O_TRUNC)) || !strikes()) \
        done = opened(path, flags, before, call); \
    pthread_mutex_unlock(&lock); \
    return done;

int open(const char *name, int flags, ...) {
    REAL(open);
    OPENING(AT_FDCWD, name, flags, real(name, flags, mode))
}

int open64(const char *name, int flags, ...) {
    REAL(open64);
    OPENING(AT_FDCWD, name, flags, real(name, flags, mode))
}

int openat(int at, const char *name, int flags, ...) {
    REAL(openat);
    OPENING(at, name, flags, real(at, name, flags, mode))
}

int openat64(int at, const char *name, int flags, ...) {
    REAL(openat64);
    OPENING(at, name, flags, real(at, name, flags, mode))
}

static int named(uint32_t kind, const char *path, const char *other, int done) {
    if (done == 0) record(kind, 0, kind == MKDIR ? inode_of(path) : 0, 0, path, other, NULL, 0, 0);
    return done;
}

int unlink(const char *name) {
    REAL(unlink);
    char path[PATH_MAX];
    CHANGING(path_at(AT_FDCWD, name, path), real(name)) done = named(UNLINK, path, "", real(name));
    CHANGED
}

int rmdir(const char *name) {
    REAL(rmdir);
    char path[PATH_MAX];
    CHANGING(path_at(AT_FDCWD, name, path), real(name)) done = named(UNLINK, path, "", real(name));
    CHANGED
}

int unlinkat(int at, const char *name, int flags) {
    REAL(unlinkat);
    char path[PATH_MAX];
    CHANGING(path_at(at, name, path), real(at, name, flags))
        done = named(UNLINK, path, "", real(at, name, flags));
    CHANGED
}

int mkdir(const char *name, mode_t mode) {
    REAL(mkdir);
    char path[PATH_MAX];
    CHANGING(path_at(AT_FDCWD, name, path), real(name, mode))
        done = named(MKDIR, path, "", real(name, mode));
    CHANGED
}

int mkdirat(int at, const char *name, mode_t mode) {
    REAL(mkdirat);
    char path[PATH_MAX];
    CHANGING(path_at(at, name, path), real(at, name, mode))
        done = named(MKDIR, path, "", real(at, name, mode));
    CHANGED
}

int rename(const char *name, const char *other_name) {
    REAL(rename);
    char path[PATH_MAX], other[PATH_MAX];
    CHANGING(path_at(AT_FDCWD, name, path) && path_at(AT_FDCWD, other_name, other),
             real(name, other_name))
        done = named(RENAME, path, other, real(name, other_name));
    CHANGED
}

int renameat(int at, const char *name, int other_at, const char *other_name) {
    REAL(renameat);
    char path[PATH_MAX], other[PATH_MAX];
    CHANGING(path_at(at, name, path) && path_at(other_at, other_name, other),
             real(at, name, other_at, other_name))
        done = named(RENAME, path, other, real(at, name, other_at, other_name));
    CHANGED
}

/* -- for the driver ---------------------------------------------------------------------------- */

/* Watches another directory, with another file of records (NULL: none). */
void crash_watch(const char *where, const char *log) {
    pthread_mutex_lock(&lock);
    if (log_fd >= 0) syscall(SYS_close, log_fd);
    log_fd = -1;
    snprintf(directory, sizeof directory, "%s", where);
    directory_length = strlen(directory);
    if (log != NULL)
        log_fd = syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    left = operations = 0;
    pthread_mutex_unlock(&lock);
}

/* What was promised to others by now. */
void crash_note(const char *text) {
    pthread_mutex_lock(&lock);
    record(NOTE, 0, 0, 0, text, "", NULL, 0, 0);
    pthread_mutex_unlock(&lock);
}
