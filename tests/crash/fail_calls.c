/* Makes file operations of a process fail, chosen by thread, kind and path.

   LD_PRELOAD library.  FAIL_CALLS names a file of one `struct order`, which the test writes and
   every call reads: so a fault begins and ends while the process runs.  */

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OPEN = 1, READ = 2, WRITE = 4, SYNC = 8, SIZE = 16, NAME = 32, LOOK = 64, LIST = 128 };
enum { SHORT = -2 };

struct order {
    int32_t how;      /* an error number, or SHORT; 0: nothing fails */
    uint32_t kinds;   /* which of them */
    int64_t first;    /* the first operation that fails, counted from 1 */
    int64_t last;     /* and the last */
    int64_t seen;     /* counted here */
    int64_t struck;
    char below[256];  /* in this directory */
    char path[256];   /* a part of the path, or empty */
    char thread[16];  /* a part of the thread's name, "loop" for the first one, or empty */
};

static struct order *order;

__attribute__((constructor)) static void begin(void) {
    const char *name = getenv("FAIL_CALLS");
    if (name == NULL) return;
    int fd = syscall(SYS_openat, AT_FDCWD, name, O_RDWR | O_CLOEXEC, 0);
    if (fd < 0) return;
    order = mmap(NULL, sizeof *order, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    if (order == MAP_FAILED) order = NULL;
}

#define REAL(name) \
    static __typeof__(&name) real; \
    if (real == NULL) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static int below(const char *path) {
    size_t length = order == NULL ? 0 : strlen(order->below);
    return length && strncmp(path, order->below, length) == 0
        && (path[length] == '/' || path[length] == 0);
}

static int path_of(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, path, PATH_MAX - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    return below(path);
}

static int path_at(int at, const char *name, char *path) {
    char here[PATH_MAX];
    if (name == NULL || order == NULL) return 0;
    if (name[0] == '/') {
        snprintf(path, PATH_MAX, "%s", name);
    } else {
        if (at != AT_FDCWD ? !path_of(at, here) : syscall(SYS_getcwd, here, sizeof here) < 0)
            return 0;
        if (snprintf(path, PATH_MAX, "%s/%s", here, name) >= PATH_MAX) return 0;
    }
    return below(path);
}

/* Whether this operation fails: 1, with errno, or SHORT. */
static int strikes(uint32_t kind, const char *path) {
    char thread[16] = "loop";
    int kept = errno;
    if (syscall(SYS_gettid) != syscall(SYS_getpid)) prctl(PR_GET_NAME, thread);
    errno = kept;
    int how = __atomic_load_n(&order->how, __ATOMIC_ACQUIRE);
    if (how == 0 || !(order->kinds & kind)) return 0;
    if (order->thread[0] && strstr(thread, order->thread) == NULL) return 0;
    if (order->path[0] && strstr(path, order->path) == NULL) return 0;
    int64_t number = __atomic_add_fetch(&order->seen, 1, __ATOMIC_ACQ_REL);
    if (number < order->first || number > order->last) return 0;
    __atomic_add_fetch(&order->struck, 1, __ATOMIC_ACQ_REL);
    if (how == SHORT) return SHORT;
    errno = how;
    return 1;
}

#define ON_FILE(kind, fd, call) \
    char path[PATH_MAX]; \
    if (order != NULL && path_of(fd, path) && strikes(kind, path) == 1) return -1; \
    return call;

#define WRITING(fd, size, call, half) \
    char path[PATH_MAX]; \
    if (order != NULL && path_of(fd, path)) { \
        int struck = strikes(WRITE, path); \
        if (struck == 1) return -1; \
        if (struck == SHORT && (size) > 1) return half; \
    } \
    return call;

ssize_t write(int fd, const void *b, size_t n) {
    REAL(write);
    WRITING(fd, n, real(fd, b, n), real(fd, b, n / 2))
}
ssize_t pwrite(int fd, const void *b, size_t n, off_t o) {
    REAL(pwrite);
    WRITING(fd, n, real(fd, b, n, o), real(fd, b, n / 2, o))
}
ssize_t pwrite64(int fd, const void *b, size_t n, off64_t o) {
    REAL(pwrite64);
    WRITING(fd, n, real(fd, b, n, o), real(fd, b, n / 2, o))
}
ssize_t writev(int fd, const struct iovec *v, int n) {
    REAL(writev);
    WRITING(fd, n, real(fd, v, n), real(fd, v, n / 2))
}
ssize_t pwritev(int fd, const struct iovec *v, int n, off_t o) {
    REAL(pwritev);
    WRITING(fd, n, real(fd, v, n, o), real(fd, v, n / 2, o))
}
ssize_t pwritev64(int fd, const struct iovec *v, int n, off64_t o) {
    REAL(pwritev64);
    WRITING(fd, n, real(fd, v, n, o), real(fd, v, n / 2, o))
}
ssize_t sendfile(int out, int in, off_t *o, size_t n) {
    REAL(sendfile);
    WRITING(out, n, real(out, in, o, n), real(out, in, o, n / 2))
}
ssize_t sendfile64(int out, int in, off64_t *o, size_t n) {
    REAL(sendfile64);
    WRITING(out, n, real(out, in, o, n), real(out, in, o, n / 2))
}
ssize_t read(int fd, void *b, size_t n) { REAL(read); ON_FILE(READ, fd, real(fd, b, n)) }
ssize_t pread(int fd, void *b, size_t n, off_t o) {
    REAL(pread);
    ON_FILE(READ, fd, real(fd, b, n, o))
}
ssize_t pread64(int fd, void *b, size_t n, off64_t o) {
    REAL(pread64);
    ON_FILE(READ, fd, real(fd, b, n, o))
}
int fsync(int fd) { REAL(fsync); ON_FILE(SYNC, fd, real(fd)) }
int fdatasync(int fd) { REAL(fdatasync); ON_FILE(SYNC, fd, real(fd)) }
int ftruncate(int fd, off_t n) { REAL(ftruncate); ON_FILE(SIZE, fd, real(fd, n)) }
int ftruncate64(int fd, off64_t n) { REAL(ftruncate64); ON_FILE(SIZE, fd, real(fd, n)) }
int fallocate(int fd, int m, off_t o, off_t n) {
    REAL(fallocate);
    ON_FILE(SIZE, fd, real(fd, m, o, n))
}
int fallocate64(int fd, int m, off64_t o, off64_t n) {
    REAL(fallocate64);
    ON_FILE(SIZE, fd, real(fd, m, o, n))
}
int fchmod(int fd, mode_t m) { REAL(fchmod); ON_FILE(NAME, fd, real(fd, m)) }
int fstatvfs(int fd, struct statvfs *s) { REAL(fstatvfs); ON_FILE(LOOK, fd, real(fd, s)) }
int fstatvfs64(int fd, struct statvfs64 *s) { REAL(fstatvfs64); ON_FILE(LOOK, fd, real(fd, s)) }
int fstat(int fd, struct stat *s) { REAL(fstat); ON_FILE(LOOK, fd, real(fd, s)) }
int fstat64(int fd, struct stat64 *s) { REAL(fstat64); ON_FILE(LOOK, fd, real(fd, s)) }

int posix_fallocate(int fd, off_t o, off_t n) {
    REAL(posix_fallocate);
    char path[PATH_MAX];
    if (order != NULL && path_of(fd, path) && strikes(SIZE, path) == 1) return errno;
    return real(fd, o, n);
}
int posix_fallocate64(int fd, off64_t o, off64_t n) {
    REAL(posix_fallocate64);
    char path[PATH_MAX];
    if (order != NULL && path_of(fd, path) && strikes(SIZE, path) == 1) return errno;
    return real(fd, o, n);
}

#define ON_NAME(kind, at, name, failure, call) \
    char path[PATH_MAX]; \
    if (path_at(at, name, path) && strikes(kind, path) == 1) return failure; \
    return call;

#define OPENING(at, name, flags, call) \
    mode_t mode = 0; \
    if (flags & (O_CREAT | O_TMPFILE)) { \
        va_list more; \
        va_start(more, flags); \
        mode = va_arg(more, mode_t); \
        va_end(more); \
    } \
    ON_NAME(OPEN, at, name, -1, call)

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
int unlink(const char *name) { REAL(unlink); ON_NAME(NAME, AT_FDCWD, name, -1, real(name)) }
int rmdir(const char *name) { REAL(rmdir); ON_NAME(NAME, AT_FDCWD, name, -1, real(name)) }
int unlinkat(int at, const char *name, int f) {
    REAL(unlinkat);
    ON_NAME(NAME, at, name, -1, real(at, name, f))
}
int mkdir(const char *name, mode_t m) {
    REAL(mkdir);
    ON_NAME(NAME, AT_FDCWD, name, -1, real(name, m))
}
int mkdirat(int at, const char *name, mode_t m) {
    REAL(mkdirat);
    ON_NAME(NAME, at, name, -1, real(at, name, m))
}
int rename(const char *name, const char *o) {
    REAL(rename);
    ON_NAME(NAME, AT_FDCWD, name, -1, real(name, o))
}
int renameat(int at, const char *name, int t, const char *o) {
    REAL(renameat);
    ON_NAME(NAME, at, name, -1, real(at, name, t, o))
}
int utimensat(int at, const char *name, const struct timespec t[2], int f) {
    REAL(utimensat);
    ON_NAME(NAME, at, name, -1, real(at, name, t, f))
}
int statvfs(const char *name, struct statvfs *s) {
    REAL(statvfs);
    ON_NAME(LOOK, AT_FDCWD, name, -1, real(name, s))
}
int statvfs64(const char *name, struct statvfs64 *s) {
    REAL(statvfs64);
    ON_NAME(LOOK, AT_FDCWD, name, -1, real(name, s))
}
int stat(const char *restrict name, struct stat *restrict s) {
    REAL(stat);
    ON_NAME(LOOK, AT_FDCWD, name, -1, real(name, s))
}
int stat64(const char *restrict name, struct stat64 *restrict s) {
    REAL(stat64);
    ON_NAME(LOOK, AT_FDCWD, name, -1, real(name, s))
}
int lstat(const char *restrict name, struct stat *restrict s) {
    REAL(lstat);
    ON_NAME(LOOK, AT_FDCWD, name, -1, real(name, s))
}
int lstat64(const char *restrict name, struct stat64 *restrict s) {
    REAL(lstat64);
    ON_NAME(LOOK, AT_FDCWD, name, -1, real(name, s))
}
int fstatat64(int at, const char *restrict name, struct stat64 *restrict s, int f) {
    REAL(fstatat64);
    ON_NAME(LOOK, at, name, -1, real(at, name, s, f))
}
DIR *opendir(const char *name) {
    REAL(opendir);
    ON_NAME(LIST, AT_FDCWD, name, NULL, real(name))
}
