/* Streams and events. A stream is a line of time: work begins when all that is before it is over, and takes its time.
 *
 * Programming guide, "Asynchronous Concurrent Execution": order within a stream, events, the legacy default stream.
 */
#include <stdlib.h>
#include "runtime.h"

static struct stream legacy[FG_MAX_DEVICES]; /* the default stream of each device */
static struct stream *streams;               /* all others */
static uint32_t next_id = FIRST_ID;

__attribute__((constructor)) static void default_streams(void) {
    for (int device = 0; device < FG_MAX_DEVICES; device++)
        legacy[device] = (struct stream){.device = device, .id = LEGACY_ID, .blocking = true};
}

struct stream *stream_of(cudaStream_t handle) {
    bool named = handle && handle != cudaStreamLegacy && handle != cudaStreamPerThread;
    return named ? (struct stream *)handle : &legacy[fg_current_device()];
}

/* "Default Stream": work on the legacy stream waits for all blocking streams, and work on these for the legacy stream. */
int64_t stream_tail(const struct stream *stream) {
    int64_t tail = stream->busy_until;
    const struct stream *fallback = &legacy[stream->device];
    if (stream == fallback) {
        for (const struct stream *other = streams; other; other = other->next)
            if (other->device == stream->device && other->blocking && other->busy_until > tail) tail = other->busy_until;
    } else if (stream->blocking && fallback->busy_until > tail) {
        tail = fallback->busy_until;
    }
    return tail;
}

int64_t device_tail(int device) {
    pthread_mutex_lock(&fg_lock);
    int64_t tail = legacy[device].busy_until;
    for (const struct stream *stream = streams; stream; stream = stream->next)
        if (stream->device == device && stream->busy_until > tail) tail = stream->busy_until;
    pthread_mutex_unlock(&fg_lock);
    return tail;
}

static int64_t start_of(const struct stream *stream) {
    int64_t now = fg_now(), tail = stream_tail(stream);
    return tail > now ? tail : now;
}

cudaError_t submit(struct stream *stream, const struct fg_work *work, uint32_t correlation, int64_t *end_ns) {
    pthread_mutex_lock(&fg_lock);
    cudaError_t refused = stream->capture ? capture_work(stream, work, NULL, NULL) : legacy_use(stream);
    if (end_ns) *end_ns = 0;
    if (!refused && !stream->capture) {
        int64_t start = start_of(stream);
        stream->busy_until = start + work->ns;
        if (end_ns) *end_ns = stream->busy_until;
        record_work(work, start, stream, correlation, 0, 0);
    }
    pthread_mutex_unlock(&fg_lock);
    return refused;
}

/* ---- streams ---- */

static cudaStream_t new_stream(unsigned flags, int priority) {
    struct stream *stream = calloc(1, sizeof *stream);
    stream->device = fg_current_device();
    stream->priority = priority;
    stream->blocking = !(flags & cudaStreamNonBlocking);
    pthread_mutex_lock(&fg_lock);
    stream->id = next_id++;
    stream->next = streams;
    streams = stream;
    pthread_mutex_unlock(&fg_lock);
    return (cudaStream_t)stream;
}

cudaError_t cudaStreamCreate(cudaStream_t *stream) {
    BEGIN(cudaStreamCreate);
    *stream = new_stream(0, 0);
    return end(&call, cudaSuccess);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    BEGIN(cudaStreamCreateWithFlags);
    *stream = new_stream(flags, 0);
    return end(&call, cudaSuccess);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
    BEGIN(cudaStreamCreateWithPriority);
    *stream = new_stream(flags, priority);
    return end(&call, cudaSuccess);
}

/* "In case the device is still doing work in the stream, the function will return immediately": the work goes on. The
   struct stays in memory, since a trace or a capture may still name it. */
cudaError_t cudaStreamDestroy(cudaStream_t handle) {
    BEGIN(cudaStreamDestroy);
    pthread_mutex_lock(&fg_lock);
    struct stream **link = &streams;
    while (*link && *link != (struct stream *)handle) link = &(*link)->next;
    struct stream *stream = *link;
    if (stream) {
        int64_t *tail = &legacy[stream->device].busy_until; /* its work still belongs to the device */
        if (stream->busy_until > *tail) *tail = stream->busy_until;
        *link = stream->next;
    }
    pthread_mutex_unlock(&fg_lock);
    return end(&call, stream ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

cudaError_t cudaStreamGetPriority(cudaStream_t handle, int *priority) {
    *priority = stream_of(handle)->priority;
    return failed(usable());
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
    BEGIN(cudaStreamQuery);
    struct stream *stream = stream_of(handle);
    if ((refused = sync_of(stream))) return end(&call, refused);
    pthread_mutex_lock(&fg_lock);
    bool over = stream_tail(stream) <= fg_now();
    pthread_mutex_unlock(&fg_lock);
    return end(&call, over ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
    BEGIN(cudaStreamSynchronize);
    struct stream *stream = stream_of(handle);
    if ((refused = sync_of(stream))) return end(&call, refused);
    pthread_mutex_lock(&fg_lock);
    int64_t tail = stream_tail(stream);
    pthread_mutex_unlock(&fg_lock);
    host_waits(&call, "stream", stream, tail, 3 /* CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_SYNCHRONIZE */);
    return end(&call, cudaSuccess);
}

cudaError_t cudaDeviceSynchronize(void) {
    BEGIN(cudaDeviceSynchronize);
    int device = fg_current_device();
    if ((refused = device_use(device))) return end(&call, refused);
    host_waits(&call, "device", NULL, device_tail(device), 4 /* ..._TYPE_CONTEXT_SYNCHRONIZE */);
    return end(&call, cudaSuccess);
}

/* ---- events ---- */

static cudaEvent_t new_event(unsigned flags) {
    struct CUevent_st *event = calloc(1, sizeof *event);
    event->device = fg_current_device();
    event->context = fg_current_context();
    event->timed = !(flags & cudaEventDisableTiming);
    return event;
}

cudaError_t cudaEventCreate(cudaEvent_t *event) {
    BEGIN(cudaEventCreate);
    *event = new_event(0);
    return end(&call, cudaSuccess);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    BEGIN(cudaEventCreateWithFlags);
    *event = new_event(flags);
    return end(&call, cudaSuccess);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    BEGIN(cudaEventDestroy);
    free(event);
    return end(&call, cudaSuccess);
}

static cudaError_t record(cudaEvent_t event, struct stream *stream, unsigned flags) {
    /* "event and stream must be on the same CUDA context" (cudaEventRecord) */
    if (event->device != stream->device || event->context != fg_current_context()) return cudaErrorInvalidResourceHandle;
    pthread_mutex_lock(&fg_lock);
    cudaError_t refused = cudaSuccess;
    if (stream->capture && !(flags & cudaEventRecordExternal)) {
        refused = capture_record(stream, event);
    } else if (!(refused = legacy_use(stream))) {
        event->capture = NULL;
        event->recorded = true;
        event->at_ns = start_of(stream); /* when all that the stream had queued is over */
    }
    pthread_mutex_unlock(&fg_lock);
    return refused;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    BEGIN(cudaEventRecord);
    return end(&call, record(event, stream_of(stream), 0));
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
    BEGIN(cudaEventRecordWithFlags);
    return end(&call, record(event, stream_of(stream), flags));
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    BEGIN(cudaEventQuery);
    if ((refused = query_of_event(event))) return end(&call, refused);
    /* "an event that was never recorded counts as completed" */
    return end(&call, event->recorded && event->at_ns > fg_now() ? cudaErrorNotReady : cudaSuccess);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    BEGIN(cudaEventSynchronize);
    if ((refused = query_of_event(event))) return end(&call, refused);
    host_waits(&call, "event", NULL, event->at_ns, 1 /* ..._TYPE_EVENT_SYNCHRONIZE */);
    return end(&call, cudaSuccess);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t first, cudaEvent_t second) {
    BEGIN(cudaEventElapsedTime);
    if (!first->timed || !second->timed || first->capture || second->capture || !first->recorded ||
        !second->recorded || first->device != second->device)
        return end(&call, cudaErrorInvalidResourceHandle);
    int64_t now = fg_now();
    if (first->at_ns > now || second->at_ns > now) return end(&call, cudaErrorNotReady);
    *ms = (float)((double)(second->at_ns - first->at_ns) / 1e6);
    return end(&call, cudaSuccess);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned flags) {
    BEGIN(cudaStreamWaitEvent);
    struct stream *stream = stream_of(handle);
    pthread_mutex_lock(&fg_lock);
    if (event->capture || (stream->capture && !(flags & cudaEventWaitExternal))) refused = capture_wait(stream, event);
    else if (event->recorded && event->at_ns > stream->busy_until) stream->busy_until = event->at_ns;
    pthread_mutex_unlock(&fg_lock);
    return end(&call, refused);
}

/* ---- host functions ---- */

static void *run_host_call(void *given) {
    struct host_call call = *(struct host_call *)given;
    free(given);
    wait_until(call.at_ns);
    if (call.function) call.function(call.argument);
    else call.callback(call.stream, cudaSuccess, call.argument);
    return NULL;
}

/* On a thread of its own when the stream gets there. The stream does not wait until it has returned. */
cudaError_t call_host(struct host_call call) {
    struct host_call *kept = malloc(sizeof *kept);
    pthread_t thread;
    *kept = call;
    if (pthread_create(&thread, NULL, run_host_call, kept)) return cudaErrorMemoryAllocation;
    pthread_detach(thread);
    return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void *argument) {
    BEGIN(cudaLaunchHostFunc);
    struct stream *stream = stream_of(handle);
    if (stream->capture) {
        struct fg_work nothing = {.kind = FG_KERNEL, .name = "host function"};
        return end(&call, capture_work(stream, &nothing, function, argument));
    }
    return end(&call, call_host((struct host_call){start_of(stream), .function = function, .argument = argument}));
}

cudaError_t cudaStreamAddCallback(cudaStream_t handle, cudaStreamCallback_t callback, void *argument, unsigned flags) {
    (void)flags;
    BEGIN(cudaStreamAddCallback);
    struct stream *stream = stream_of(handle);
    if (stream->capture) return end(&call, cudaErrorStreamCaptureUnsupported);
    return end(&call, call_host((struct host_call){start_of(stream), .callback = callback, .stream = handle,
                                                   .argument = argument}));
}
