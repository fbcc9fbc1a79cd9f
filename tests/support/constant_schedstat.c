// SPDX-License-Identifier: Apache-2.0
// Preloaded, the kernel's count of the time in the queue never grows, as in a machine whose processor a hypervisor
// has taken away.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

typedef int open_function(const char *, int, ...);

static int constant(void) {
    static const char text[] = "1000 0 1\n";
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return -1;
    const ssize_t written = write(ends[1], text, sizeof text - 1);
    close(ends[1]);
    if (written > 0) return ends[0];
    close(ends[0]);
    return -1;
}

static int opened(const char *name, const char *path, int flags, mode_t mode) {
    const size_t length = strlen(path);
    if (length > 9 && strcmp(path + length - 9, "schedstat") == 0) return constant();
    open_function *const real = (open_function *)dlsym(RTLD_NEXT, name);
    return real(path, flags, mode);
}

#define OPENS(name)                                                                          \
    int name(const char *path, int flags, ...) {                                             \
        va_list rest;                                                                        \
        va_start(rest, flags);                                                               \
        const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(rest, mode_t) : 0; \
        va_end(rest);                                                                        \
        return opened(#name, path, flags, mode);                                             \
    }

OPENS(open)
OPENS(open64)
