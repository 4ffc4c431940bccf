/* Stream capture and graphs: what a capture takes in, what it forbids, and replays.
 *
 * Sources: programming guide, "Creating a Graph Using Stream Capture" (GUIDE below); Runtime API,
 * cudaThreadExchangeStreamCaptureMode (MODES). They are read; of what uses them tests/gpu has run a part on a GPU.
 */
#include <stdlib.h>
#include <string.h>
#include "runtime.h"

static struct capture *captures;
static unsigned long long last_capture;
static uint32_t last_graph;
static uint64_t last_node;
static __thread enum cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

/* GUIDE, "Invalidation": "When an invalid operation is attempted during stream capture, any associated capture graphs are
   invalidated", and every use of its streams fails until the capture ends. */
void invalidate(struct capture *capture) { capture->invalid = true; }

/* MODES: "if the local thread has an ongoing capture sequence that was not initiated with Relaxed, or if any other
   thread has a concurrent capture sequence initiated with Global, this thread is prohibited from potentially unsafe API
   calls"; in mode ThreadLocal only the first; in mode Relaxed neither. */
cudaError_t unsafe_call(void) {
    cudaError_t result = cudaSuccess;
    if (thread_mode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
    pthread_mutex_lock(&fg_lock);
    for (struct capture *one = captures; one; one = one->next) {
        bool mine = pthread_equal(one->thread, pthread_self());
        bool counts = mine ? one->mode != cudaStreamCaptureModeRelaxed
                           : one->mode == cudaStreamCaptureModeGlobal && thread_mode == cudaStreamCaptureModeGlobal;
        if (!one->active || !counts) continue;
        invalidate(one);
        result = cudaErrorStreamCaptureUnsupported;
    }
    pthread_mutex_unlock(&fg_lock);
    return result;
}

int fg_unsafe_call(void) { return unsafe_call(); }

/* GUIDE, "Prohibited and Unhandled Operations": "When any stream in the same context is being captured, and it was not
   created with cudaStreamNonBlocking, any attempted use of the legacy stream is invalid". */
static struct capture *beside_legacy(const struct stream *stream) {
    for (struct capture *one = stream->id == LEGACY_ID ? captures : NULL; one; one = one->next)
        for (int lane = 0; one->active && lane < one->lanes; lane++)
            if (one->member[lane]->device == stream->device && one->member[lane]->blocking) return one;
    return NULL;
}

cudaError_t legacy_use(const struct stream *stream) {
    struct capture *capture = beside_legacy(stream);
    if (!capture) return cudaSuccess;
    invalidate(capture);
    return cudaErrorStreamCaptureImplicit;
}

/* GUIDE, there: "It is also invalid to query or synchronize a broader handle which encompasses an active stream capture,
   such as a device or context handle when any associated stream is in capture mode". */
cudaError_t device_use(int device) {
    cudaError_t result = cudaSuccess;
    pthread_mutex_lock(&fg_lock);
    for (struct capture *one = captures; one; one = one->next) {
        for (int lane = 0; one->active && lane < one->lanes; lane++) {
            if (one->member[lane]->device != device) continue;
            invalidate(one);
            result = cudaErrorStreamCaptureUnsupported;
        }
    }
    pthread_mutex_unlock(&fg_lock);
    return result;
}

/* GUIDE, there: "It is invalid to synchronize or query the execution status of a stream which is being captured or a
   captured event, because they do not represent items scheduled for execution". */
cudaError_t sync_of(const struct stream *stream) {
    cudaError_t result;
    pthread_mutex_lock(&fg_lock);
    if (stream->capture) {
        invalidate(stream->capture);
        result = cudaErrorStreamCaptureUnsupported;
    } else if (!(result = legacy_use(stream))) {
        result = unsafe_call();
    }
    pthread_mutex_unlock(&fg_lock);
    return result;
}

cudaError_t query_of_event(cudaEvent_t event) {
    if (!event->capture) return unsafe_call();
    if (event->capture->active) invalidate(event->capture);
    return cudaErrorCapturedEvent;
}

/* ---- what a capture takes in ---- */

static struct node *add_node(struct CUgraph_st *graph) {
    if (graph->count == graph->room) {
        graph->room = graph->room ? 2 * graph->room : 64;
        graph->nodes = realloc(graph->nodes, graph->room * sizeof *graph->nodes);
    }
    return &graph->nodes[graph->count++];
}

cudaError_t capture_work(struct stream *stream, const struct fg_work *work, cudaHostFn_t function, void *argument) {
    struct capture *capture = stream->capture;
    if (capture->invalid) return cudaErrorStreamCaptureInvalidated;
    *add_node(capture->graph) = (struct node){.offset_ns = stream->place.offset_ns, .id = ++last_node, .work = *work,
                                              .function = function, .argument = argument};
    stream->place.offset_ns += work->ns;
    stream->place.seen[stream->lane]++;
    if (stream->place.offset_ns > capture->graph->ns) capture->graph->ns = stream->place.offset_ns;
    return cudaSuccess;
}

cudaError_t capture_record(struct stream *stream, cudaEvent_t event) {
    if (stream->capture->invalid) return cudaErrorStreamCaptureInvalidated;
    event->capture = stream->capture;
    event->place = stream->place;
    return cudaSuccess;
}

/* GUIDE, "Cross-stream Dependencies and Events": a stream that waits for a captured event joins the capture. */
cudaError_t capture_wait(struct stream *stream, cudaEvent_t event) {
    struct capture *capture = event->capture;
    if (!capture) { /* "invalid to wait on a non-captured event from a stream which is being captured" */
        invalidate(stream->capture);
        return cudaErrorStreamCaptureIsolation;
    }
    if (!capture->active) return cudaErrorCapturedEvent;
    if (capture->invalid) return cudaErrorStreamCaptureInvalidated;
    if (stream->capture && stream->capture != capture) { /* "invalid to merge two separate capture graphs" */
        invalidate(stream->capture);
        invalidate(capture);
        return cudaErrorStreamCaptureMerge;
    }
    if (!stream->capture) {
        if (capture->lanes == MAX_LANES) return cudaErrorNotSupported;
        stream->capture = capture;
        stream->lane = capture->lanes;
        stream->place = (struct place){0};
        capture->member[capture->lanes++] = stream;
    }
    for (int lane = 0; lane < capture->lanes; lane++)
        if (event->place.seen[lane] > stream->place.seen[lane]) stream->place.seen[lane] = event->place.seen[lane];
    if (event->place.offset_ns > stream->place.offset_ns) stream->place.offset_ns = event->place.offset_ns;
    return cudaSuccess;
}

/* ---- from begin to end ---- */

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, enum cudaStreamCaptureMode mode) {
    BEGIN(cudaStreamBeginCapture);
    struct stream *stream = stream_of(handle);
    if (stream->id == LEGACY_ID) return end(&call, cudaErrorStreamCaptureUnsupported); /* "not on cudaStreamLegacy" */
    if (stream->capture) return end(&call, cudaErrorIllegalState);
    struct capture *capture = calloc(1, sizeof *capture);
    pthread_mutex_lock(&fg_lock);
    *capture = (struct capture){.id = ++last_capture, .mode = mode, .thread = pthread_self(), .active = true,
                                .lanes = 1, .member = {stream}, .next = captures};
    capture->graph = calloc(1, sizeof *capture->graph);
    capture->graph->id = ++last_graph;
    capture->graph->references = 1;
    captures = capture;
    stream->capture = capture;
    stream->lane = 0;
    stream->place = (struct place){0};
    pthread_mutex_unlock(&fg_lock);
    return end(&call, cudaSuccess);
}

static void release(struct CUgraph_st *graph) {
    if (--graph->references) return;
    free(graph->nodes);
    free(graph);
}

/* "Cross-stream Dependencies": all that was forked must be joined to the stream in which the capture began. */
static bool joined(const struct capture *capture) {
    const struct place *origin = &capture->member[0]->place;
    for (int lane = 1; lane < capture->lanes; lane++)
        if (capture->member[lane]->place.seen[lane] > origin->seen[lane]) return false;
    return true;
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t *graph) {
    BEGIN(cudaStreamEndCapture);
    struct stream *stream = stream_of(handle);
    struct capture *capture = stream->capture;
    *graph = NULL;
    if (!capture) return end(&call, cudaErrorIllegalState);
    if (capture->member[0] != stream) return end(&call, cudaErrorStreamCaptureUnmatched);
    /* "If the mode is not Relaxed, it must be called from the same thread as cudaStreamBeginCapture." */
    if (capture->mode != cudaStreamCaptureModeRelaxed && !pthread_equal(capture->thread, pthread_self()))
        return end(&call, cudaErrorStreamCaptureWrongThread);
    pthread_mutex_lock(&fg_lock);
    refused = capture->invalid ? cudaErrorStreamCaptureInvalidated
              : joined(capture) ? cudaSuccess : cudaErrorStreamCaptureUnjoined;
    for (int lane = 0; lane < capture->lanes; lane++) capture->member[lane]->capture = NULL;
    capture->active = false;
    struct capture **link = &captures;
    while (*link != capture) link = &(*link)->next;
    *link = capture->next;
    if (refused) release(capture->graph);
    else *graph = capture->graph;
    pthread_mutex_unlock(&fg_lock);
    return end(&call, refused);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, enum cudaStreamCaptureStatus *status) {
    struct stream *stream = stream_of(handle);
    cudaError_t refused = usable();
    /* "The blocking stream capture is not invalidated." */
    if (!refused && beside_legacy(stream)) refused = cudaErrorStreamCaptureImplicit;
    *status = !stream->capture          ? cudaStreamCaptureStatusNone
              : stream->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                         : cudaStreamCaptureStatusActive;
    return failed(refused);
}

/* Dependencies are not kept as CUDA's own nodes: none are told. */
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                     cudaGraph_t *graph, const cudaGraphNode_t **dependencies,
                                     const cudaGraphEdgeData **edges, size_t *count) {
    static const cudaGraphNode_t none[1];
    struct stream *stream = stream_of(handle);
    if (id) *id = stream->capture ? stream->capture->id : 0;
    if (graph) *graph = stream->capture ? stream->capture->graph : NULL;
    if (dependencies) *dependencies = none;
    if (edges) *edges = NULL;
    if (count) *count = 0;
    return cudaStreamIsCapturing(handle, status);
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
    enum cudaStreamCaptureMode before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return cudaSuccess;
}

/* ---- graphs ---- */

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *instance, cudaGraph_t graph, unsigned long long flags) {
    (void)flags;
    BEGIN(cudaGraphInstantiateWithFlags);
    if ((refused = unsafe_call())) return end(&call, refused);
    graph->references++;
    *instance = (cudaGraphExec_t)graph; /* nothing of a graph changes after its capture */
    return end(&call, cudaSuccess);
}

/* Each node at its place after the launch: streams of the capture run beside each other again. */
cudaError_t cudaGraphLaunch(cudaGraphExec_t instance, cudaStream_t handle) {
    BEGIN(cudaGraphLaunch);
    struct CUgraph_st *graph = (struct CUgraph_st *)instance;
    struct stream *stream = stream_of(handle);
    if (stream->capture) { /* a child graph; torch asks for none */
        invalidate(stream->capture);
        return end(&call, cudaErrorNotSupported);
    }
    pthread_mutex_lock(&fg_lock);
    if (!(refused = legacy_use(stream))) {
        int64_t now = fg_now(), start = stream_tail(stream);
        if (start < now) start = now;
        for (size_t i = 0; i < graph->count; i++) {
            const struct node *node = &graph->nodes[i];
            int64_t at = start + node->offset_ns;
            if (node->function) call_host((struct host_call){at, .function = node->function, .argument = node->argument});
            else record_work(&node->work, at, stream, call.correlation, graph->id, node->id);
            move_bytes(&node->work);
        }
        stream->busy_until = start + graph->ns;
    }
    pthread_mutex_unlock(&fg_lock);
    return end(&call, refused);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    pthread_mutex_lock(&fg_lock);
    release(graph);
    pthread_mutex_unlock(&fg_lock);
    return failed(usable());
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t instance) { return cudaGraphDestroy((cudaGraph_t)instance); }

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) {
    for (size_t i = 0; nodes && i < *count && i < graph->count; i++) nodes[i] = (cudaGraphNode_t)graph->nodes[i].id;
    if (!nodes || *count > graph->count) *count = graph->count;
    return cudaSuccess;
}

cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t *dependencies, cudaGraphEdgeData *edges,
                                         size_t *count) {
    (void)node, (void)dependencies, (void)edges;
    *count = 0;
    return cudaSuccess;
}
