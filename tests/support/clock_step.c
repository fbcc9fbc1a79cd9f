// SPDX-License-Identifier: Apache-2.0
// Preloaded, it steps the wall clock an hour back and forth with each reading; the monotonic clock is as it is.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <sys/time.h>
#include <time.h>

static long step(void) {
    static _Atomic long readings;
    return (readings++ & 1) ? -3600 : 3600;
}

int clock_gettime(clockid_t clock, struct timespec *found) {
    static int (*real)(clockid_t, struct timespec *);
    if (real == NULL) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    const int result = real(clock, found);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) found->tv_sec += step();
    return result;
}

int gettimeofday(struct timeval *restrict found, void *restrict zone) {
    static int (*real)(struct timeval *, void *);
    if (real == NULL) real = (int (*)(struct timeval *, void *))dlsym(RTLD_NEXT, "gettimeofday");
    const int result = real(found, zone);
    if (result == 0) found->tv_sec += step();
    return result;
}

time_t time(time_t *found) {
    struct timeval now;
    gettimeofday(&now, NULL);
    if (found != NULL) *found = now.tv_sec;
    return now.tv_sec;
}
