/* CUPTI's activity API over the runtime's trace: the records that Kineto asks for. */
#include <cupti.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "fake_gpu.h"

#define NUMBER(name, version) CUPTI_RUNTIME_TRACE_CBID_##name##_##version,
static const uint32_t numbers[FG_NAMES] = {FG_CALLS(NUMBER)};

enum { CALLBACKS = 2048, LARGEST_RECORD = 512 };

static CUpti_BuffersCallbackRequestFunc request_buffer;
static CUpti_BuffersCallbackCompleteFunc buffer_done;
static bool left_out[CALLBACKS]; /* calls of the runtime that the user does not want */

/* Kineto has a clock of its own; two looks at both give the line that turns one into the other. */
static CUpti_TimestampCallbackFunc timestamp;
static int64_t first_now;
static uint64_t first_stamp;

static unsigned bit_of(CUpti_ActivityKind kind) {
    switch (kind) {
    case CUPTI_ACTIVITY_KIND_KERNEL: case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: return 1u << FG_KERNEL;
    case CUPTI_ACTIVITY_KIND_MEMCPY: case CUPTI_ACTIVITY_KIND_MEMCPY2: return 1u << FG_COPY;
    case CUPTI_ACTIVITY_KIND_MEMSET: return 1u << FG_SET;
    case CUPTI_ACTIVITY_KIND_RUNTIME: return 1u << FG_API;
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: return 1u << FG_EXTERNAL;
    case CUPTI_ACTIVITY_KIND_SYNCHRONIZATION: return 1u << FG_SYNC;
    default: return 0;
    }
}

/* CUPTI asks for a buffer when it has a first record, and Kineto flushes only if it has given one: asked for at once. */
static uint8_t *buffer;
static size_t buffer_bytes;

static bool have_buffer(void) {
    size_t most = 0;
    if (!buffer && request_buffer) request_buffer(&buffer, &buffer_bytes, &most);
    return buffer && buffer_bytes >= LARGEST_RECORD;
}

static void give_buffer(size_t used) {
    uint8_t *full = buffer;
    buffer = NULL;
    buffer_done(NULL, 0, full, buffer_bytes, used);
}

CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind) {
    have_buffer();
    fg_traced |= bit_of(kind);
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind) {
    fg_traced &= ~bit_of(kind);
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityEnableRuntimeApi(CUpti_CallbackId number, uint8_t enable) {
    if (number < CALLBACKS) left_out[number] = !enable;
    if (enable) fg_traced |= 1u << FG_API;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc request,
                                           CUpti_BuffersCallbackCompleteFunc complete) {
    request_buffer = request;
    buffer_done = complete;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityRegisterTimestampCallback(CUpti_TimestampCallbackFunc function) {
    timestamp = function;
    first_now = fg_now();
    first_stamp = function();
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityPushExternalCorrelationId(CUpti_ExternalCorrelationKind kind, uint64_t id) {
    fg_push_external(kind, id);
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityPopExternalCorrelationId(CUpti_ExternalCorrelationKind kind, uint64_t *last) {
    uint64_t id = fg_pop_external(kind);
    if (last) *last = id;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext context, uint32_t stream, size_t *dropped) {
    (void)context, (void)stream;
    *dropped = 0;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiFinalize(void) {
    fg_traced = 0;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiGetVersion(uint32_t *version) {
    *version = CUPTI_API_VERSION;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiGetResultString(CUptiResult result, const char **text) {
    *text = result ? "CUPTI_ERROR_UNKNOWN" : "CUPTI_SUCCESS";
    return CUPTI_SUCCESS;
}

CUptiResult cuptiGetCallbackName(CUpti_CallbackDomain domain, uint32_t number, const char **name) {
    (void)domain;
    *name = "INVALID"; /* what Kineto expects of a call that CUPTI does not know */
    for (int i = 0; i < FG_NAMES; i++)
        if (numbers[i] == number) *name = fg_names[i];
    return CUPTI_SUCCESS;
}

/* ---- records ---- */

union record {
    CUpti_ActivityKernel10 kernel;
    CUpti_ActivityMemcpy6 copy;
    CUpti_ActivityMemset4 set;
    CUpti_ActivityAPI api;
    CUpti_ActivityExternalCorrelation external;
    CUpti_ActivitySynchronization2 sync;
};

struct clocks { int64_t now; uint64_t stamp; };

static uint64_t stamp_of(int64_t ns, struct clocks last) {
    if (!timestamp || last.now == first_now) return (uint64_t)ns;
    double rate = (double)(int64_t)(last.stamp - first_stamp) / (double)(last.now - first_now);
    return first_stamp + (uint64_t)(int64_t)((double)(ns - first_now) * rate);
}

static uint8_t copy_kind(const struct fg_work *work) {
    if (work->peer >= 0) return CUPTI_ACTIVITY_MEMCPY_KIND_PTOP;
    if (work->from == FG_DEVICE) return work->to == FG_DEVICE ? CUPTI_ACTIVITY_MEMCPY_KIND_DTOD : CUPTI_ACTIVITY_MEMCPY_KIND_DTOH;
    return work->to == FG_DEVICE ? CUPTI_ACTIVITY_MEMCPY_KIND_HTOD : CUPTI_ACTIVITY_MEMCPY_KIND_HTOH;
}

/* One context a device, as the runtime makes them. */
static uint32_t context_of(const struct fg_record *from) { return from->device + 1; }

static size_t fill_kernel(CUpti_ActivityKernel10 *to, const struct fg_record *from, uint64_t start, uint64_t end) {
    const struct fg_work *work = &from->work;
    *to = (CUpti_ActivityKernel10){.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, .start = start, .end = end,
                                   .completed = end, .deviceId = from->device, .contextId = context_of(from),
                                   .streamId = from->stream, .correlationId = from->correlation, .name = work->name,
                                   .registersPerThread = 32, .dynamicSharedMemory = (int32_t)work->shared_bytes,
                                   .graphId = from->graph, .graphNodeId = from->node};
    to->gridX = (int32_t)work->grid[0], to->gridY = (int32_t)work->grid[1], to->gridZ = (int32_t)work->grid[2];
    to->blockX = (int32_t)work->block[0], to->blockY = (int32_t)work->block[1], to->blockZ = (int32_t)work->block[2];
    return sizeof *to;
}

/* The size of the record, or 0 for one that nobody wants. */
static size_t fill(union record *to, const struct fg_record *from, uint64_t start, uint64_t end) {
    switch (from->kind) {
    case FG_KERNEL:
        return fill_kernel(&to->kernel, from, start, end);
    case FG_COPY:
        to->copy = (CUpti_ActivityMemcpy6){
            .kind = CUPTI_ACTIVITY_KIND_MEMCPY, .copyKind = copy_kind(&from->work), .srcKind = (uint8_t)from->work.from,
            .dstKind = (uint8_t)from->work.to, .flags = CUPTI_ACTIVITY_FLAG_MEMCPY_ASYNC, .bytes = from->work.bytes,
            .start = start, .end = end, .deviceId = from->device, .contextId = context_of(from),
            .streamId = from->stream, .correlationId = from->correlation, .graphId = from->graph,
            .graphNodeId = from->node};
        return sizeof to->copy;
    case FG_SET:
        to->set = (CUpti_ActivityMemset4){
            .kind = CUPTI_ACTIVITY_KIND_MEMSET, .value = (uint32_t)from->work.value, .bytes = from->work.bytes,
            .start = start, .end = end, .deviceId = from->device, .contextId = context_of(from),
            .streamId = from->stream, .correlationId = from->correlation, .memoryKind = FG_DEVICE,
            .graphId = from->graph, .graphNodeId = from->node};
        return sizeof to->set;
    case FG_API:
        if (left_out[numbers[from->call]]) return 0;
        to->api = (CUpti_ActivityAPI){.kind = CUPTI_ACTIVITY_KIND_RUNTIME, .cbid = numbers[from->call], .start = start,
                                      .end = end, .processId = (uint32_t)getpid(), .threadId = from->thread,
                                      .correlationId = from->correlation};
        return sizeof to->api;
    case FG_EXTERNAL:
        to->external = (CUpti_ActivityExternalCorrelation){
            .kind = CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION, .externalId = from->external_id,
            .externalKind = (CUpti_ExternalCorrelationKind)from->external_kind, .correlationId = from->correlation};
        return sizeof to->external;
    default:
        to->sync = (CUpti_ActivitySynchronization2){
            .kind = CUPTI_ACTIVITY_KIND_SYNCHRONIZATION, .type = (CUpti_ActivitySynchronizationType)from->sync_kind,
            .start = start, .end = end, .correlationId = from->correlation, .contextId = context_of(from),
            .streamId = from->stream};
        return sizeof to->sync;
    }
}

/* A buffer holds, for each record, its size in 8 bytes and then the record: only cuptiActivityGetNextRecord reads it. */
static size_t write_record(uint8_t *at, const struct fg_record *from, struct clocks last) {
    union record record;
    memset(&record, 0, sizeof record);
    uint64_t size = fill(&record, from, stamp_of(from->start_ns, last), stamp_of(from->end_ns, last));
    if (!size) return 0;
    size = (size + 7) & ~7ull;
    memcpy(at, &size, sizeof size);
    memcpy(at + sizeof size, &record, size < sizeof record ? size : sizeof record);
    return sizeof size + size;
}

CUptiResult cuptiActivityFlushAll(uint32_t flag) {
    struct fg_record *records;
    struct clocks last = {fg_now(), timestamp ? timestamp() : 0};
    size_t count = fg_take_records(&records), i = 0;
    while (i < count && have_buffer()) {
        size_t used = 0;
        while (i < count && used + LARGEST_RECORD < buffer_bytes) used += write_record(buffer + used, &records[i++], last);
        give_buffer(used);
    }
    if (flag && buffer) give_buffer(0);
    free(records);
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityGetNextRecord(uint8_t *given, size_t used, CUpti_Activity **record) {
    uint8_t *at = given;
    uint64_t size;
    if (*record) {
        uint8_t *before = (uint8_t *)*record;
        memcpy(&size, before - sizeof size, sizeof size);
        at = before + size;
    }
    if (at >= given + used) return CUPTI_ERROR_MAX_LIMIT_REACHED;
    *record = (CUpti_Activity *)(at + sizeof size);
    return CUPTI_SUCCESS;
}
