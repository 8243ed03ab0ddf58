/* A wall clock that jumps by a day, forwards and backwards, each time somebody looks; other clocks are left alone. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>

static long jump(void) {
    static int looks;
    return ++looks % 2 ? 86400 : -86400;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);
    if (clock == CLOCK_REALTIME) now->tv_sec += jump();
    return result;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *result) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (result) *result = exact.tv_sec;
    return exact.tv_sec;
}
