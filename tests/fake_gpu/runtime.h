/* What the files of libcudart share with each other. */
#pragma once
#include <cuda_runtime_api.h>
#include <pthread.h>
#include "fake_gpu.h"

enum { MAX_LANES = 32 }; /* streams in one capture; torch's pool has 32 a device */

/* CUPTI's numbers: the default stream is 7, and the first other one 13. */
enum { LEGACY_ID = 7, FIRST_ID = 13 };

/* Where a stream or an event stands in a capture: how far into the graph, and which work of each stream came before. */
struct place {
    int64_t offset_ns;
    unsigned seen[MAX_LANES];
};

/* From cudaStreamBeginCapture to cudaStreamEndCapture. Never freed: an event may refer to one that has ended. */
struct capture {
    unsigned long long id;
    enum cudaStreamCaptureMode mode;
    pthread_t thread;
    bool active, invalid;
    int lanes;
    struct stream *member[MAX_LANES]; /* the first is where it began */
    struct CUgraph_st *graph;
    struct capture *next;
};

struct stream {
    int device, priority;
    uint32_t id;         /* as a trace shows it */
    bool blocking;       /* waits for the legacy stream, and it for this one */
    int64_t busy_until;
    struct capture *capture;
    int lane;
    struct place place;
    struct stream *next;
};

struct CUevent_st {
    int device, context;
    bool timed, recorded;
    int64_t at_ns;
    struct capture *capture; /* it was last recorded in: then it has a place and no time */
    struct place place;
};

struct node {
    int64_t offset_ns; /* from the graph's start */
    uint64_t id;
    struct fg_work work;
    cudaHostFn_t function;
    void *argument;
};

struct CUgraph_st {
    uint32_t id;
    int references; /* the graph, and each that was instantiated from it */
    int64_t ns;
    size_t count, room;
    struct node *nodes;
};

/* ---- machine.c ---- */
extern pthread_mutex_t fg_lock; /* of everything below; recursive */
cudaError_t usable(void);       /* cudaSuccess, or why this process cannot use CUDA */
cudaError_t use_context(enum fg_name call, int device);
int visible_devices(void);
cudaError_t failed(cudaError_t error); /* remembers it for cudaGetLastError */

/* ---- calls.c ---- */
struct call {
    enum fg_name name;
    uint32_t correlation;
    int64_t start_ns;
    const char *waited; /* for what, if the call is one in which the host waits for the device */
    uint32_t stream;    /* of the log */
};
struct call begin(enum fg_name name);
cudaError_t end(struct call *call, cudaError_t error);
/* Opens a call that needs a context: returns from the function where there is none to be had. */
#define BEGIN(function)                                                                                                \
    struct call call = begin(FG_##function);                                                                           \
    cudaError_t refused = use_context(FG_##function, fg_current_device());                                             \
    if (refused) return end(&call, refused)
/* The host waits for the device until then; `sync_kind` is CUPTI's, or 0 for a wait that CUPTI has no record of. */
void host_waits(struct call *call, const char *what, const struct stream *stream, int64_t until_ns, int sync_kind);
void record_work(const struct fg_work *work, int64_t start_ns, const struct stream *stream, uint32_t correlation,
                 uint32_t graph, uint64_t node);
void wait_until(int64_t at_ns);

/* ---- streams.c ---- */
struct stream *stream_of(cudaStream_t handle);
int64_t stream_tail(const struct stream *stream);
int64_t device_tail(int device);
/* On a stream, or as a node of the graph that the stream captures; *end_ns is 0 in a capture. */
cudaError_t submit(struct stream *stream, const struct fg_work *work, uint32_t correlation, int64_t *end_ns);

struct host_call {
    int64_t at_ns;
    cudaHostFn_t function;
    cudaStreamCallback_t callback; /* where there is no function */
    cudaStream_t stream;
    void *argument;
};
cudaError_t call_host(struct host_call call);

/* ---- capture.c ---- */
/* Each says with an error what a capture forbids, and invalidates that capture. */
cudaError_t unsafe_call(void);
cudaError_t legacy_use(const struct stream *stream);
cudaError_t device_use(int device);
cudaError_t sync_of(const struct stream *stream);
cudaError_t query_of_event(cudaEvent_t event);
cudaError_t capture_work(struct stream *stream, const struct fg_work *work, cudaHostFn_t function, void *argument);
cudaError_t capture_record(struct stream *stream, cudaEvent_t event);
cudaError_t capture_wait(struct stream *stream, cudaEvent_t event);
void invalidate(struct capture *capture);

/* ---- memory.c ---- */
void move_bytes(const struct fg_work *work);
void *device_address(const void *symbol);
