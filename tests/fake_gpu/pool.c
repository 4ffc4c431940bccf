/* The stream-ordered allocator (Runtime API, "Stream Ordered Memory Allocator"): one pool for each device, its default.
 *
 * A copy moves its bytes when it is asked for, so memory can go as soon as it is freed, whatever its stream has queued;
 * the pool keeps what it has reserved, as torch asks it to (no release threshold). What a capture has allocated stays:
 * its replays use the same addresses.
 */
#include <string.h>
#include "runtime.h"

struct CUmemPoolHandle_st {
    int device;
    uint64_t used, used_high, reserved, reserved_high;
};

static struct CUmemPoolHandle_st pools[FG_MAX_DEVICES];

static struct CUmemPoolHandle_st *pool_of(int device) {
    pools[device].device = device;
    return &pools[device];
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device) {
    *pool = pool_of(device);
    return failed(usable());
}

static bool grow(struct CUmemPoolHandle_st *pool, size_t bytes) {
    uint64_t needed = pool->used + bytes;
    if (needed > pool->reserved) {
        if (!fg_take_memory(pool->device, needed - pool->reserved)) return false;
        pool->reserved = needed;
    }
    pool->used = needed;
    if (pool->used > pool->used_high) pool->used_high = pool->used;
    if (pool->reserved > pool->reserved_high) pool->reserved_high = pool->reserved;
    return true;
}

cudaError_t cudaMallocAsync(void **address, size_t bytes, cudaStream_t handle) {
    BEGIN(cudaMallocAsync);
    struct CUmemPoolHandle_st *pool = pool_of(stream_of(handle)->device);
    size_t whole = fg_whole(bytes);
    *address = NULL;
    pthread_mutex_lock(&fg_lock);
    if (grow(pool, whole)) {
        if ((*address = fg_reserve(whole))) fg_map(*address, whole, pool->device);
        else pool->used -= whole;
    }
    pthread_mutex_unlock(&fg_lock);
    return end(&call, *address ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaFreeAsync(void *address, cudaStream_t handle) {
    BEGIN(cudaFreeAsync);
    size_t bytes;
    if (stream_of(handle)->capture) return end(&call, cudaSuccess);
    pthread_mutex_lock(&fg_lock);
    int device = fg_forget(address, &bytes);
    if (device >= 0) {
        fg_unreserve(address, bytes);
        pool_of(device)->used -= bytes;
    }
    pthread_mutex_unlock(&fg_lock);
    return end(&call, device >= 0 ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t kept) {
    pthread_mutex_lock(&fg_lock);
    uint64_t wanted = kept > pool->used ? kept : pool->used;
    if (wanted < pool->reserved) {
        fg_give_memory(pool->device, pool->reserved - wanted);
        pool->reserved = wanted;
    }
    pthread_mutex_unlock(&fg_lock);
    return failed(usable());
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value) {
    uint64_t known[] = {[cudaMemPoolAttrReservedMemCurrent] = pool->reserved, [cudaMemPoolAttrReservedMemHigh] = pool->reserved_high,
                        [cudaMemPoolAttrUsedMemCurrent] = pool->used, [cudaMemPoolAttrUsedMemHigh] = pool->used_high};
    if (attribute < cudaMemPoolAttrReservedMemCurrent || attribute > cudaMemPoolAttrUsedMemHigh)
        return failed(cudaErrorInvalidValue);
    memcpy(value, &known[attribute], sizeof(uint64_t));
    return failed(usable());
}

/* A peak can be set back, to zero only; the settings of reuse and release change nothing here. */
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value) {
    (void)value;
    if (attribute == cudaMemPoolAttrReservedMemHigh) pool->reserved_high = pool->reserved;
    if (attribute == cudaMemPoolAttrUsedMemHigh) pool->used_high = pool->used;
    return failed(usable());
}

/* Memory of any device is memory of the host. */
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const struct cudaMemAccessDesc *access, size_t count) {
    (void)pool, (void)access, (void)count;
    return failed(usable());
}
