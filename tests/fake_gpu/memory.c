/* Memory of the device is memory of the host, counted; a copy moves its bytes when it is asked for and takes time after.
 *
 * When the host waits is in the Runtime API, "API synchronization behavior".
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "runtime.h"

/* Up to here the driver takes the bytes of an asynchronous copy from pageable memory at once, and the host does not wait.
   On an H200 (driver 580) 1 MiB did not wait for the kernels before them, and 4 MiB did. */
enum { INLINE_BYTES = 1 << 20 };
enum { PAGE = 4096 };

struct block {
    char *start;
    size_t bytes;
    enum fg_memory kind;
    int device;
};

static struct block *blocks; /* sorted by address */
static size_t block_count, block_room;

/* The last block that begins at or before the address, plus one. */
static size_t blocks_before(const void *address) {
    size_t low = 0, high = block_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (blocks[middle].start <= (const char *)address) low = middle + 1;
        else high = middle;
    }
    return low;
}

static void add_block(struct block block) {
    if (block_count == block_room) {
        block_room = block_room ? 2 * block_room : 256;
        blocks = realloc(blocks, block_room * sizeof *blocks);
    }
    size_t at = blocks_before(block.start);
    memmove(&blocks[at + 1], &blocks[at], (block_count - at) * sizeof *blocks);
    blocks[at] = block;
    block_count++;
}

static bool block_of(const void *address, struct block *found) {
    pthread_mutex_lock(&fg_lock);
    size_t at = blocks_before(address);
    bool inside = at && (const char *)address < blocks[at - 1].start + blocks[at - 1].bytes;
    if (inside) *found = blocks[at - 1];
    pthread_mutex_unlock(&fg_lock);
    return inside;
}

static bool remove_block(const void *start, struct block *removed) {
    pthread_mutex_lock(&fg_lock);
    size_t at = blocks_before(start);
    bool known = at && blocks[at - 1].start == start;
    if (known) {
        *removed = blocks[--at];
        memmove(&blocks[at], &blocks[at + 1], (--block_count - at) * sizeof *blocks);
    }
    pthread_mutex_unlock(&fg_lock);
    return known;
}

static enum fg_memory kind_of(const void *address) {
    struct block block;
    return block_of(address, &block) ? block.kind : FG_PAGEABLE;
}

/* Address space that the machine backs with memory only where it is touched: 80 GB fit into any machine's. */
void *fg_reserve(size_t bytes) {
    char *all = mmap(NULL, bytes + FG_GRANULE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED) return NULL;
    char *start = (char *)(((uintptr_t)all + FG_GRANULE - 1) & ~(uintptr_t)(FG_GRANULE - 1));
    if (start > all) munmap(all, (size_t)(start - all));
    munmap(start + bytes, (size_t)(all + FG_GRANULE - start));
    return start;
}

void fg_unreserve(void *start, size_t bytes) { munmap(start, bytes); }

void fg_map(void *start, size_t bytes, int device) {
    pthread_mutex_lock(&fg_lock);
    add_block((struct block){start, bytes, FG_DEVICE, device});
    pthread_mutex_unlock(&fg_lock);
}

/* Removes the device memory that begins there from what is known; returns its device, or -1. */
int fg_forget(void *start, size_t *bytes) {
    struct block block;
    if (kind_of(start) != FG_DEVICE || !remove_block(start, &block)) return -1;
    *bytes = block.bytes;
    return block.device;
}

/* All that was mapped from there on, however many pieces it was mapped in; the next to be mapped there finds zeros. */
void fg_unmap(void *start, size_t bytes) {
    struct block block;
    for (char *at = start; at < (char *)start + bytes && remove_block(at, &block); at += block.bytes) {}
    madvise(start, bytes, MADV_DONTNEED);
}

cudaError_t cudaMalloc(void **address, size_t bytes) {
    BEGIN(cudaMalloc);
    int device = fg_current_device();
    size_t whole = fg_whole(bytes);
    *address = NULL;
    if ((refused = unsafe_call())) return end(&call, refused);
    if (!bytes) return end(&call, cudaSuccess);
    if (fg_take_memory(device, whole)) {
        if ((*address = fg_reserve(whole))) fg_map(*address, whole, device);
        else fg_give_memory(device, whole);
    }
    return end(&call, *address ? cudaSuccess : cudaErrorMemoryAllocation);
}

/* Waits for the device: memory is not freed under a kernel ("cudaFree ... implicit synchronization"). */
cudaError_t cudaFree(void *address) {
    BEGIN(cudaFree);
    size_t bytes;
    if (!address) return end(&call, cudaSuccess);
    if ((refused = unsafe_call())) return end(&call, refused);
    host_waits(&call, "free", NULL, device_tail(fg_current_device()), 0);
    int device = fg_forget(address, &bytes);
    if (device < 0) return end(&call, cudaErrorInvalidValue);
    fg_unreserve(address, bytes);
    fg_give_memory(device, bytes);
    return end(&call, cudaSuccess);
}

cudaError_t cudaHostAlloc(void **address, size_t bytes, unsigned flags) {
    (void)flags;
    BEGIN(cudaHostAlloc);
    if ((refused = unsafe_call())) return end(&call, refused);
    if (posix_memalign(address, 4096, bytes ? bytes : 1)) return end(&call, cudaErrorMemoryAllocation);
    pthread_mutex_lock(&fg_lock);
    add_block((struct block){*address, bytes ? bytes : 1, FG_PINNED, fg_current_device()});
    pthread_mutex_unlock(&fg_lock);
    return end(&call, cudaSuccess);
}

cudaError_t cudaFreeHost(void *address) {
    BEGIN(cudaFreeHost);
    struct block block;
    if (remove_block(address, &block)) free(address);
    return end(&call, cudaSuccess);
}

cudaError_t cudaHostRegister(void *address, size_t bytes, unsigned flags) {
    (void)flags;
    BEGIN(cudaHostRegister);
    pthread_mutex_lock(&fg_lock);
    add_block((struct block){address, bytes, FG_PINNED, fg_current_device()});
    pthread_mutex_unlock(&fg_lock);
    return end(&call, cudaSuccess);
}

cudaError_t cudaHostUnregister(void *address) {
    BEGIN(cudaHostUnregister);
    struct block block;
    return end(&call, remove_block(address, &block) ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *address) {
    struct block block;
    cudaError_t refused = usable();
    memset(attributes, 0, sizeof *attributes);
    attributes->type = cudaMemoryTypeUnregistered;
    attributes->device = -2;
    attributes->hostPointer = (void *)address;
    if (refused || !block_of(address, &block)) return failed(refused);
    attributes->type = block.kind == FG_DEVICE ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
    attributes->device = block.device;
    attributes->devicePointer = (void *)address;
    if (block.kind == FG_DEVICE) attributes->hostPointer = NULL;
    return cudaSuccess;
}

/* ---- copies ---- */

/* Bytes per ns: NVLink 4 between devices, an H100's memory read and written, PCIe 5 x16, and staging through a buffer. */
static double copy_rate(const struct fg_work *work) {
    if (work->from == FG_DEVICE && work->to == FG_DEVICE) return work->peer >= 0 ? 400 : 1600;
    return work->from == FG_PAGEABLE || work->to == FG_PAGEABLE ? 6 : 50;
}

/* Whole pages are given back to the machine: a large tensor of zeros takes no memory of it. */
void fg_clear(void *start, size_t bytes) {
    char *end = (char *)start + bytes, *first = (char *)(((uintptr_t)start + PAGE - 1) & ~(uintptr_t)(PAGE - 1));
    char *last = (char *)((uintptr_t)end & ~(uintptr_t)(PAGE - 1));
    if (bytes < 16 * PAGE || madvise(first, (size_t)(last - first), MADV_DONTNEED)) first = last = end;
    memset(start, 0, (size_t)(first - (char *)start));
    memset(last, 0, (size_t)(end - last));
}

void move_bytes(const struct fg_work *work) {
    for (size_t row = 0; row < work->height && work->kind != FG_KERNEL; row++) {
        char *target = (char *)work->target + row * work->target_pitch;
        size_t bytes = work->bytes / work->height;
        if (work->kind == FG_COPY) memmove(target, (const char *)work->source + row * work->source_pitch, bytes);
        else if (work->value) memset(target, work->value, bytes);
        else fg_clear(target, bytes);
    }
}

/* Where the host waits, and for what ("Memcpy", Synchronous and Asynchronous); NULL: nowhere. */
static const char *copy_waits(const struct fg_work *work, bool synchronous) {
    bool to_device = work->to == FG_DEVICE;
    if (to_device && work->from == FG_DEVICE) return NULL; /* "no host-side synchronization is performed" */
    if (to_device && work->from == FG_PAGEABLE) return synchronous || work->bytes > INLINE_BYTES ? "staging" : NULL;
    if (!to_device && work->to == FG_PAGEABLE) return "copy";
    return synchronous ? "copy" : NULL;
}

static cudaError_t copy(struct call *call, struct fg_work work, cudaStream_t handle, bool synchronous) {
    struct stream *stream = stream_of(handle);
    struct block from, to;
    cudaError_t refused;
    int64_t end_ns;
    work.kind = FG_COPY;
    work.from = kind_of(work.source);
    work.to = kind_of(work.target);
    work.peer = -1;
    if (work.from == FG_DEVICE && work.to == FG_DEVICE && block_of(work.source, &from) && block_of(work.target, &to) &&
        from.device != to.device)
        work.peer = to.device;
    work.ns = 1000 + (int64_t)((double)work.bytes / copy_rate(&work)); /* a copy of nothing takes about a microsecond */
    const char *wait = copy_waits(&work, synchronous);
    if (synchronous && (refused = unsafe_call())) return refused;
    /* "Prohibited and Unhandled Operations": a captured copy cannot be one for which the host waits. */
    if (stream->capture && (wait || work.from == FG_PAGEABLE || work.to == FG_PAGEABLE)) {
        invalidate(stream->capture);
        return cudaErrorStreamCaptureUnsupported;
    }
    if (!stream->capture) move_bytes(&work);
    if ((refused = submit(stream, &work, call->correlation, &end_ns))) return refused;
    if (wait) host_waits(call, wait, stream, end_ns, 0);
    return cudaSuccess;
}

static struct fg_work flat(void *target, const void *source, size_t bytes) {
    return (struct fg_work){.target = target, .source = source, .bytes = bytes, .height = 1};
}

cudaError_t cudaMemcpy(void *target, const void *source, size_t bytes, enum cudaMemcpyKind kind) {
    (void)kind;
    BEGIN(cudaMemcpy);
    return end(&call, copy(&call, flat(target, source, bytes), 0, true));
}

cudaError_t cudaMemcpyAsync(void *target, const void *source, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream) {
    (void)kind;
    BEGIN(cudaMemcpyAsync);
    return end(&call, copy(&call, flat(target, source, bytes), stream, false));
}

cudaError_t cudaMemcpyPeerAsync(void *target, int to, const void *source, int from, size_t bytes, cudaStream_t stream) {
    (void)to, (void)from; /* the addresses tell */
    BEGIN(cudaMemcpyPeerAsync);
    return end(&call, copy(&call, flat(target, source, bytes), stream, false));
}

cudaError_t cudaMemcpy2DAsync(void *target, size_t target_pitch, const void *source, size_t source_pitch, size_t width,
                              size_t height, enum cudaMemcpyKind kind, cudaStream_t stream) {
    (void)kind;
    BEGIN(cudaMemcpy2DAsync);
    struct fg_work work = {.target = target, .source = source, .bytes = width * height, .height = height,
                           .target_pitch = target_pitch, .source_pitch = source_pitch};
    return end(&call, copy(&call, work, stream, false));
}

static cudaError_t set(struct call *call, void *target, int value, size_t bytes, cudaStream_t handle) {
    struct stream *stream = stream_of(handle);
    struct fg_work work = {.kind = FG_SET, .target = target, .value = value, .bytes = bytes, .height = 1,
                           .to = FG_DEVICE, .ns = 1000 + (int64_t)((double)bytes / 3000)};
    if (!stream->capture) move_bytes(&work);
    return submit(stream, &work, call->correlation, NULL);
}

/* Not synchronous on device memory ("Memset"). */
cudaError_t cudaMemset(void *target, int value, size_t bytes) {
    BEGIN(cudaMemset);
    return end(&call, set(&call, target, value, bytes, 0));
}

cudaError_t cudaMemsetAsync(void *target, int value, size_t bytes, cudaStream_t stream) {
    BEGIN(cudaMemsetAsync);
    return end(&call, set(&call, target, value, bytes, stream));
}

/* ---- variables of the device ---- */

static struct { const void *symbol; size_t bytes; void *address; } variables[4096];
static size_t variable_count;

void __cudaRegisterVar(void **module, char *symbol, char *address, const char *name, int external, size_t bytes,
                       int constant, int global) {
    (void)module, (void)address, (void)name, (void)external, (void)constant, (void)global;
    if (variable_count == sizeof variables / sizeof *variables) return;
    variables[variable_count].symbol = symbol;
    variables[variable_count++].bytes = bytes;
}

void *device_address(const void *symbol) {
    for (size_t i = 0; i < variable_count; i++) {
        if (variables[i].symbol != symbol) continue;
        if (!variables[i].address) {
            variables[i].address = calloc(1, variables[i].bytes);
            pthread_mutex_lock(&fg_lock);
            add_block((struct block){variables[i].address, variables[i].bytes, FG_DEVICE, fg_current_device()});
            pthread_mutex_unlock(&fg_lock);
        }
        return variables[i].address;
    }
    return NULL;
}

cudaError_t cudaGetSymbolAddress(void **address, const void *symbol) {
    *address = device_address(symbol);
    return failed(*address ? usable() : cudaErrorInvalidSymbol);
}

cudaError_t cudaMemcpyToSymbol(const void *symbol, const void *source, size_t bytes, size_t offset,
                               enum cudaMemcpyKind kind) {
    (void)kind;
    BEGIN(cudaMemcpyToSymbol);
    char *target = device_address(symbol);
    if (!target) return end(&call, cudaErrorInvalidSymbol);
    return end(&call, copy(&call, flat(target + offset, source, bytes), 0, true));
}
