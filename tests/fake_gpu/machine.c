/* The machine and this process's hold on it: cards, contexts, fork, the last error. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "runtime.h"

pthread_mutex_t fg_lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

static int cards = 1;
static uint64_t memory_bytes = 80ull << 30;
static const char *card_name = "NVIDIA H100 80GB HBM3";

static bool started;  /* the driver: what CUDA_VISIBLE_DEVICES says is read then, and never again */
static bool poisoned; /* forked from a process in which it was started */
static int visible = -1, card_of[FG_MAX_DEVICES];
static bool context[FG_MAX_DEVICES];
static uint64_t used_bytes[FG_MAX_DEVICES];
static __thread struct { int id, device; } stack[8]; /* of contexts; the first is the thread's own */
static __thread int depth;
static __thread cudaError_t last;

/* "CUDA driver functions must not be called from the child of fork()": cudaErrorInitializationError there. */
static void in_child(void) {
    pthread_mutex_t fresh = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
    fg_lock = fresh;
    poisoned = started;
}

__attribute__((constructor)) static void read_settings(void) {
    const char *text;
    if ((text = getenv("FAKE_GPU_DEVICES"))) cards = atoi(text);
    if (cards > FG_MAX_DEVICES) cards = FG_MAX_DEVICES;
    if ((text = getenv("FAKE_GPU_MEMORY"))) memory_bytes = strtoull(text, NULL, 0);
    if ((text = getenv("FAKE_GPU_NAME"))) card_name = text;
    pthread_atfork(NULL, NULL, in_child);
}

static void uuid_of(int card, unsigned char uuid[16]) {
    memcpy(uuid, "simulated gpu..", 16);
    uuid[15] = (unsigned char)card;
}

/* Programming guide, "CUDA Environment Variables": CUDA_VISIBLE_DEVICES ends at the first index that no card has. */
static void start_driver(void) {
    const char *text = getenv("CUDA_VISIBLE_DEVICES");
    visible = 0;
    if (!text) {
        for (; visible < cards; visible++) card_of[visible] = visible;
    } else {
        while (*text && visible < FG_MAX_DEVICES) {
            char *rest;
            long index = strtol(text, &rest, 10);
            if (rest == text || index < 0 || index >= cards) break;
            card_of[visible++] = (int)index;
            text = *rest == ',' ? rest + 1 : rest;
        }
    }
    started = true;
}

cudaError_t usable(void) {
    if (poisoned) return cudaErrorInitializationError;
    pthread_mutex_lock(&fg_lock);
    if (!started) start_driver();
    pthread_mutex_unlock(&fg_lock);
    return visible ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t use_context(enum fg_name call, int device) {
    cudaError_t refused = usable();
    if (refused) return refused;
    /* "If a non-primary context is current to the calling thread, the runtime uses it" (Interactions with the Driver API) */
    if (!fg_current_context() && !context[device]) {
        context[device] = true;
        fg_log("context", fg_names[call], "\"device\": %d", device);
    }
    return cudaSuccess;
}

int visible_devices(void) { return visible; }
int fg_cards(void) { return cards; }
int fg_current_device(void) { return stack[depth].device; }
int fg_current_context(void) { return stack[depth].id; }

void fg_set_context(int id, int device) {
    stack[depth].id = id;
    stack[depth].device = device;
}

bool fg_push_context(int id, int device) {
    if (depth + 1 == sizeof stack / sizeof *stack) return false;
    depth++;
    fg_set_context(id, device);
    return true;
}

bool fg_pop_context(void) { return depth ? depth-- : false; }
bool fg_has_context(int device) { return device >= 0 && device < FG_MAX_DEVICES && context[device] && !poisoned; }

struct fg_card fg_card(int index) {
    struct fg_card card = {.memory_bytes = memory_bytes};
    snprintf(card.name, sizeof card.name, "%s", card_name);
    uuid_of(index, card.uuid);
    for (int device = 0; device < visible; device++) {
        if (card_of[device] != index) continue;
        card.used_bytes = used_bytes[device];
        card.busy = device_tail(device) > fg_now();
    }
    return card;
}

bool fg_take_memory(int device, size_t bytes) {
    pthread_mutex_lock(&fg_lock);
    bool fits = used_bytes[device] + bytes <= memory_bytes;
    if (fits) used_bytes[device] += bytes;
    pthread_mutex_unlock(&fg_lock);
    return fits;
}

void fg_give_memory(int device, size_t bytes) {
    pthread_mutex_lock(&fg_lock);
    used_bytes[device] -= bytes;
    pthread_mutex_unlock(&fg_lock);
}

cudaError_t failed(cudaError_t error) {
    if (error) last = error;
    return error;
}

cudaError_t cudaGetLastError(void) {
    cudaError_t error = last;
    last = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void) { return last; }

/* ---- devices ---- */

/* Starts the driver, as the real one does: children that are forked from here on cannot use CUDA. */
cudaError_t cudaGetDeviceCount(int *count) {
    struct call call = begin(FG_cudaGetDeviceCount);
    cudaError_t refused = usable();
    *count = refused ? 0 : visible;
    return end(&call, refused);
}

cudaError_t cudaGetDevice(int *device) {
    *device = fg_current_device();
    return failed(usable());
}

/* Since CUDA 12 it also makes the device's context (Runtime API, "cudaSetDevice"), and that one is then current. */
cudaError_t cudaSetDevice(int device) {
    struct call call = begin(FG_cudaSetDevice);
    cudaError_t refused = usable();
    if (!refused && (device < 0 || device >= visible)) refused = cudaErrorInvalidDevice;
    if (!refused) fg_set_context(0, device);
    if (!refused) refused = use_context(FG_cudaSetDevice, device);
    return end(&call, refused);
}

cudaError_t cudaDriverGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

/* An H100 SXM: its data sheet, and the programming guide's table for compute capability 9.0. */
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
    cudaError_t refused = usable();
    if (!refused && (device < 0 || device >= visible)) refused = cudaErrorInvalidDevice;
    if (refused) return failed(refused);
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "%s", card_name);
    uuid_of(card_of[device], (unsigned char *)p->uuid.bytes);
    p->totalGlobalMem = memory_bytes;
    p->major = 9;
    p->multiProcessorCount = 132;
    p->warpSize = 32;
    p->maxThreadsPerBlock = 1024;
    p->maxThreadsPerMultiProcessor = 2048;
    p->maxBlocksPerMultiProcessor = 32;
    p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = 2147483647;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->regsPerBlock = p->regsPerMultiprocessor = 65536;
    p->sharedMemPerBlock = 49152;
    p->sharedMemPerBlockOptin = 232448;
    p->sharedMemPerMultiprocessor = 233472;
    p->reservedSharedMemPerBlock = 1024;
    p->totalConstMem = 65536;
    p->textureAlignment = 512;
    p->memPitch = 2147483647;
    p->l2CacheSize = 50 << 20;
    p->memoryBusWidth = 5120;
    p->asyncEngineCount = 3;
    p->pciBusID = card_of[device] + 1;
    p->canMapHostMemory = p->concurrentKernels = p->ECCEnabled = p->unifiedAddressing = p->managedMemory = 1;
    p->streamPrioritiesSupported = p->globalL1CacheSupported = p->localL1CacheSupported = p->cooperativeLaunch = 1;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    struct cudaDeviceProp p;
    cudaError_t refused = cudaGetDeviceProperties(&p, device);
    if (refused) return refused;
    switch ((int)attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = p.maxThreadsPerBlock; break;
    case cudaDevAttrMaxGridDimX: *value = p.maxGridSize[0]; break;
    case cudaDevAttrMaxGridDimY: case cudaDevAttrMaxGridDimZ: *value = p.maxGridSize[1]; break;
    case cudaDevAttrMaxBlockDimX: case cudaDevAttrMaxBlockDimY: *value = p.maxThreadsDim[0]; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = (int)p.sharedMemPerBlock; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = (int)p.sharedMemPerBlockOptin; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = (int)p.sharedMemPerMultiprocessor; break;
    case cudaDevAttrMultiProcessorCount: *value = p.multiProcessorCount; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = p.maxThreadsPerMultiProcessor; break;
    case cudaDevAttrMaxRegistersPerBlock: case cudaDevAttrMaxRegistersPerMultiprocessor: *value = p.regsPerBlock; break;
    case cudaDevAttrWarpSize: *value = p.warpSize; break;
    case cudaDevAttrTextureAlignment: *value = (int)p.textureAlignment; break;
    case cudaDevAttrL2CacheSize: *value = p.l2CacheSize; break;
    case cudaDevAttrClockRate: *value = 1980000; break;
    case cudaDevAttrMemoryClockRate: *value = 2619000; break;
    case cudaDevAttrComputeCapabilityMajor: *value = p.major; break;
    case cudaDevAttrPciBusId: *value = p.pciBusID; break;
    case cudaDevAttrUnifiedAddressing: case cudaDevAttrConcurrentKernels: case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrCooperativeLaunch: case cudaDevAttrStreamPrioritiesSupported:
    case 102: /* CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED */ *value = 1; break;
    default: *value = 0;
    }
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int size, int device) {
    snprintf(text, (size_t)size, "0000:%02X:00.0", card_of[device] + 1);
    return failed(usable());
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0;
    *greatest = -5;
    return failed(usable());
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    *can = device != peer;
    return failed(usable());
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
    (void)peer, (void)flags;
    BEGIN(cudaDeviceEnablePeerAccess);
    return end(&call, cudaSuccess);
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    BEGIN(cudaMemGetInfo);
    *total_bytes = memory_bytes;
    *free_bytes = memory_bytes - used_bytes[fg_current_device()];
    return end(&call, cudaSuccess);
}

/* ---- errors ---- */

/* The texts are those of the Runtime API's error table: torch puts them into what it raises. */
static const struct { cudaError_t error; const char *name, *text; } errors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorIllegalState, "cudaErrorIllegalState", "the operation cannot be performed in the present state"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureMerge, "cudaErrorStreamCaptureMerge",
     "operation would result in a merge of separate capture sequences"},
    {cudaErrorStreamCaptureUnmatched, "cudaErrorStreamCaptureUnmatched", "capture was not ended in the same stream as it began"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined",
     "capturing stream has unjoined work"},
    {cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation", "dependency created on uncaptured work in another stream"},
    {cudaErrorStreamCaptureImplicit, "cudaErrorStreamCaptureImplicit",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {cudaErrorStreamCaptureWrongThread, "cudaErrorStreamCaptureWrongThread",
     "attempt to terminate a thread-local capture sequence from another thread"},
    {cudaErrorCapturedEvent, "cudaErrorCapturedEvent",
     "operation not permitted on an event last recorded in a capturing stream"},
};

const char *cudaGetErrorName(cudaError_t error) {
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].error == error) return errors[i].name;
    return "cudaErrorUnknown";
}

const char *cudaGetErrorString(cudaError_t error) {
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].error == error) return errors[i].text;
    return "unknown error";
}

/* ---- the driver's functions, which torch asks the runtime for ---- */

static int not_supported(void) { return cudaErrorNotSupported; }

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                             unsigned long long flags, enum cudaDriverEntryPointQueryResult *result) {
    (void)version, (void)flags;
    *function = dlsym(RTLD_DEFAULT, name); /* driver.c has those that are written */
    if (!*function) *function = (void *)not_supported;
    if (result) *result = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}
