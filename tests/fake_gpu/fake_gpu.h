/* What the libraries of the simulated runtime share: time, work on a stream, the trace, the log.
 *
 * libcudart has all of it; the others (cuBLAS, CUPTI, NVML, ...) ask it. README.md says what is modelled and what is not.
 * Times are nanoseconds of the host's monotonic clock. A device is late, or not, by comparison with that clock: nothing
 * runs on a thread of its own.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

int64_t fg_now(void);
int fg_unsafe_call(void); /* a cudaError_t: of a call that a capture may forbid, as cudaMalloc is one */

/* ---- the machine ---- */

enum { FG_MAX_DEVICES = 8 };

struct fg_card {
    char name[96];
    unsigned char uuid[16];
    uint64_t memory_bytes, used_bytes;
    bool busy; /* a stream of this process has work that is not over */
};

int fg_cards(void);                       /* how many the machine has, whatever CUDA_VISIBLE_DEVICES says */
struct fg_card fg_card(int index);        /* by NVML's index */
int fg_current_device(void);              /* of this thread */
bool fg_has_context(int device);          /* whether a call has made the device's primary context */
int fg_current_context(void);             /* of this thread; 0: the device's primary one, else one that cuCtxCreate made */
void fg_set_context(int id, int device);
bool fg_push_context(int id, int device);
bool fg_pop_context(void);

/* ---- memory, for the driver's virtual memory: address space first, and device memory for parts of it ---- */

enum { FG_GRANULE = 2 << 20 }; /* of cudaMalloc and cuMemCreate; torch's allocator counts on the alignment */
static inline size_t fg_whole(size_t bytes) { return (bytes + FG_GRANULE - 1) & ~(size_t)(FG_GRANULE - 1); }
void *fg_reserve(size_t bytes);
void fg_unreserve(void *start, size_t bytes);
void fg_map(void *start, size_t bytes, int device);
void fg_unmap(void *start, size_t bytes);
int fg_forget(void *start, size_t *bytes);
bool fg_take_memory(int device, size_t bytes);
void fg_give_memory(int device, size_t bytes);
void fg_clear(void *start, size_t bytes); /* zeros, of memory that is private to this process */

/* ---- work ---- */

enum fg_kind { FG_KERNEL, FG_COPY, FG_SET, FG_API, FG_EXTERNAL, FG_SYNC };
enum fg_memory { FG_PAGEABLE = 1, FG_PINNED = 2, FG_DEVICE = 3 }; /* CUpti_ActivityMemoryKind's numbers */

struct fg_work {
    enum fg_kind kind; /* FG_KERNEL, FG_COPY or FG_SET */
    const char *name;  /* of a kernel; must outlive the process's traces */
    int64_t ns;
    unsigned grid[3], block[3], shared_bytes;
    uint64_t bytes;
    enum fg_memory from, to;
    int peer; /* the other device of a copy between two, else -1 */
    /* What a graph does again at each replay. */
    void *target;
    const void *source;
    size_t target_pitch, source_pitch, height;
    int value;
};

/* Puts a kernel on a stream as cudaLaunchKernel does. Returns a cudaError_t. */
int fg_launch(void *stream, const char *name, int64_t ns, const unsigned grid[3], const unsigned block[3],
              unsigned shared_bytes);
int64_t fg_kernel_ns(const char *name, const unsigned grid[3], const unsigned block[3], void **arguments);
/* What products of m x k and k x n take, `batch` of them, and the kernel that a trace shows. `type` is a cudaDataType. */
int fg_product(void *stream, int type, bool tensor_float, double m, double n, double k, double batch);

/* ---- calls of the runtime: what a trace and the log name ---- */

/* Name, and the version that CUPTI's enumerator for it ends in. */
#define FG_CALLS(X)                                                                                                    \
    X(cudaGetDeviceCount, v3020) X(cudaSetDevice, v3020) X(cudaDeviceSynchronize, v3020)                               \
    X(cudaMalloc, v3020) X(cudaFree, v3020) X(cudaMallocAsync, v11020) X(cudaFreeAsync, v11020) X(cudaHostAlloc, v3020) X(cudaFreeHost, v3020)                             \
    X(cudaHostRegister, v4000) X(cudaHostUnregister, v4000) X(cudaMemGetInfo, v3020)                                   \
    X(cudaMemcpy, v3020) X(cudaMemcpyAsync, v3020) X(cudaMemcpy2DAsync, v3020) X(cudaMemcpyPeerAsync, v4000)           \
    X(cudaMemcpyToSymbol, v3020) X(cudaMemset, v3020) X(cudaMemsetAsync, v3020)                                        \
    X(cudaDeviceEnablePeerAccess, v4000) X(cudaStreamCreate, v3020) X(cudaStreamCreateWithFlags, v5000)                \
    X(cudaStreamCreateWithPriority, v5050) X(cudaStreamDestroy, v5050) X(cudaStreamQuery, v3020)                       \
    X(cudaStreamSynchronize, v3020) X(cudaStreamWaitEvent, v3020) X(cudaStreamAddCallback, v5000)                      \
    X(cudaStreamBeginCapture, v10000) X(cudaStreamEndCapture, v10000) X(cudaEventCreate, v3020)                        \
    X(cudaEventCreateWithFlags, v3020) X(cudaEventDestroy, v3020) X(cudaEventRecord, v3020)                            \
    X(cudaEventRecordWithFlags, v11010) X(cudaEventQuery, v3020) X(cudaEventSynchronize, v3020)                        \
    X(cudaEventElapsedTime, v12080) X(cudaLaunchKernel, v7000) X(cudaLaunchKernelExC, v11060)                          \
    X(cudaLaunchHostFunc, v10000) X(cudaGraphLaunch, v10000) X(cudaGraphInstantiateWithFlags, v11040)                  \
    X(cudaProfilerStart, v4000) X(cudaProfilerStop, v4000)

#define FG_ENUMERATOR(name, version) FG_##name,
enum fg_name { FG_CALLS(FG_ENUMERATOR) FG_NAMES };
extern const char *const fg_names[FG_NAMES];

/* ---- the trace, which CUPTI hands on ---- */

struct fg_record {
    enum fg_kind kind;
    int64_t start_ns, end_ns;
    uint32_t correlation, stream, device, thread, graph;
    uint64_t node;
    struct fg_work work;     /* FG_KERNEL, FG_COPY, FG_SET */
    enum fg_name call;       /* FG_API */
    int external_kind;       /* FG_EXTERNAL */
    uint64_t external_id;
    int sync_kind;           /* FG_SYNC: CUpti_ActivitySynchronizationType's number */
};

extern volatile unsigned fg_traced; /* a bit for each fg_kind that is asked for */
/* Records of what is over by now, for the caller to free; the rest stays. */
size_t fg_take_records(struct fg_record **records);
void fg_push_external(int kind, uint64_t id);
uint64_t fg_pop_external(int kind);

/* ---- the log: one JSON object a line, in the file that FAKE_GPU_LOG names ---- */

void fg_log(const char *event, const char *call, const char *format, ...) __attribute__((format(printf, 3, 4)));
