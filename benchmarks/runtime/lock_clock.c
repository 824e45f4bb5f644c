/* A clock of Python's lock, to be preloaded (LD_PRELOAD): a thread's CPU time with the lock, and how often it takes it.
   It sees what calls PyEval_SaveThread and PyEval_RestoreThread by the dynamic linker: extension modules and numba's
   machine code always, the interpreter itself where it is a shared library built with semantic interposition. A lock
   that the interpreter takes from a thread after its switch interval is not seen.
   Build: cc -O2 -shared -fPIC -o lock_clock.so lock_clock.c -ldl */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>

static void *(*save)(void);
static void (*restore)(void *);
static __thread long long released, began, taken;

static long long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

void *PyEval_SaveThread(void) {
    if (!save) save = dlsym(RTLD_NEXT, "PyEval_SaveThread");
    void *state = save();
    began = now();
    return state;
}

void PyEval_RestoreThread(void *state) {
    if (!restore) restore = dlsym(RTLD_NEXT, "PyEval_RestoreThread");
    released += now() - began;
    taken++;
    restore(state);
}

/* Of the calling thread, which holds the lock: ns of CPU time with it and without it so far, and how often it took it. */
long long lock_held(void) { return now() - released; }
long long lock_released(void) { return released; }
long long lock_taken(void) { return taken; }
