/* What every call has in common: its trace record, its line in the log, and the host's waiting. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "runtime.h"

#define NAME(name, version) #name,
const char *const fg_names[FG_NAMES] = {FG_CALLS(NAME)};

volatile unsigned fg_traced;
static struct fg_record *records;
static size_t record_count, record_room;
static uint32_t last_correlation;
static int log_file = -1;

enum { MAX_EXTERNAL = 512 }; /* ops inside ops on one thread */
static __thread struct { int kind; uint64_t id; } external[MAX_EXTERNAL];
static __thread int externals;

int64_t fg_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}

void wait_until(int64_t at_ns) {
    int64_t sleep_ns = at_ns - 60000; /* a sleep ends some 50 us late, by Linux's timer slack: the rest is spun */
    struct timespec at = {sleep_ns / 1000000000ll, sleep_ns % 1000000000ll};
    while (sleep_ns > fg_now() && clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR) {}
    while (at_ns > fg_now()) {}
}

/* ---- the log ---- */

/* Where the log goes from now on; also for tests, which call it through ctypes. NULL: nowhere. */
void fake_gpu_log_to(const char *path) {
    if (log_file >= 0) close(log_file);
    log_file = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644) : -1;
}

__attribute__((constructor)) static void open_log(void) {
    if (getenv("FAKE_GPU_LOG")) fake_gpu_log_to(getenv("FAKE_GPU_LOG"));
}

/* One write for each line: lines of several threads and processes do not mix. */
void fg_log(const char *event, const char *call, const char *format, ...) {
    char line[1024];
    if (log_file < 0) return;
    int size = snprintf(line, sizeof line, "{\"event\": \"%s\", \"call\": \"%s\", \"at_ns\": %lld, \"pid\": %d, \"thread\": %ld, ",
                        event, call, (long long)fg_now(), getpid(), syscall(SYS_gettid));
    va_list rest;
    va_start(rest, format);
    size += vsnprintf(line + size, sizeof line - (size_t)size - 3, format, rest);
    va_end(rest);
    if (size > (int)sizeof line - 3) return; /* a text that does not fit would not be JSON */
    memcpy(line + size, "}\n", 2);
    if (write(log_file, line, (size_t)size + 2) < 0) log_file = -1;
}

/* ---- the trace ---- */

static void put(struct fg_record record) {
    pthread_mutex_lock(&fg_lock);
    if (record_count == record_room) {
        record_room = record_room ? 2 * record_room : 4096;
        records = realloc(records, record_room * sizeof *records);
    }
    records[record_count++] = record;
    pthread_mutex_unlock(&fg_lock);
}

static bool traced(enum fg_kind kind) { return fg_traced >> kind & 1; }

size_t fg_take_records(struct fg_record **taken) {
    pthread_mutex_lock(&fg_lock);
    int64_t now = fg_now();
    size_t count = 0, kept = 0;
    *taken = malloc((record_count + 1) * sizeof **taken);
    for (size_t i = 0; i < record_count; i++) {
        if (records[i].end_ns <= now) (*taken)[count++] = records[i];
        else records[kept++] = records[i];
    }
    record_count = kept;
    pthread_mutex_unlock(&fg_lock);
    return count;
}

void record_work(const struct fg_work *work, int64_t start_ns, const struct stream *stream, uint32_t correlation,
                 uint32_t graph, uint64_t node) {
    if (!traced(work->kind)) return;
    put((struct fg_record){.kind = work->kind, .start_ns = start_ns, .end_ns = start_ns + work->ns, .work = *work,
                           .stream = stream->id, .device = (uint32_t)stream->device, .correlation = correlation,
                           .graph = graph, .node = node});
}

void fg_push_external(int kind, uint64_t id) {
    if (externals == MAX_EXTERNAL) return;
    external[externals].kind = kind;
    external[externals++].id = id;
}

uint64_t fg_pop_external(int kind) {
    for (int i = externals - 1; i >= 0; i--) {
        if (external[i].kind != kind) continue;
        uint64_t id = external[i].id;
        memmove(&external[i], &external[i + 1], (size_t)(externals - i - 1) * sizeof *external);
        externals--;
        return id;
    }
    return 0;
}

/* CUPTI gives a call the innermost id of each kind that is pushed on its thread. */
static void put_externals(uint32_t correlation) {
    unsigned seen = 0;
    for (int i = externals - 1; i >= 0; i--) {
        if (seen >> external[i].kind & 1) continue;
        seen |= 1u << external[i].kind;
        put((struct fg_record){.kind = FG_EXTERNAL, .correlation = correlation, .external_kind = external[i].kind,
                               .external_id = external[i].id});
    }
}

/* ---- calls ---- */

struct call begin(enum fg_name name) {
    return (struct call){.name = name, .start_ns = fg_now(), .stream = UINT32_MAX,
                         .correlation = __atomic_add_fetch(&last_correlation, 1, __ATOMIC_RELAXED)};
}

void host_waits(struct call *call, const char *what, const struct stream *stream, int64_t until_ns, int sync_kind) {
    int64_t start_ns = fg_now();
    call->waited = what;
    if (stream) call->stream = stream->id;
    wait_until(until_ns);
    if (sync_kind && traced(FG_SYNC))
        put((struct fg_record){.kind = FG_SYNC, .start_ns = start_ns, .end_ns = fg_now(), .sync_kind = sync_kind,
                               .correlation = call->correlation, .stream = call->stream,
                               .device = (uint32_t)fg_current_device()});
}

cudaError_t end(struct call *call, cudaError_t error) {
    if (fg_traced) {
        if (traced(FG_EXTERNAL)) put_externals(call->correlation);
        if (traced(FG_API))
            put((struct fg_record){.kind = FG_API, .start_ns = call->start_ns, .end_ns = fg_now(), .call = call->name,
                                   .correlation = call->correlation, .thread = (uint32_t)pthread_self()});
    }
    if (call->waited)
        fg_log("wait", fg_names[call->name], "\"for\": \"%s\", \"device\": %d, \"stream\": %d, \"ns\": %lld", call->waited,
               fg_current_device(), (int)call->stream, (long long)(fg_now() - call->start_ns));
    if (error && error != cudaErrorNotReady)
        fg_log("error", fg_names[call->name], "\"error\": \"%s\"", cudaGetErrorName(error));
    return failed(error);
}
