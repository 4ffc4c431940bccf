/* libcuda: the driver's functions that torch and Triton call themselves. torch gets them by name through the runtime. */
#define _GNU_SOURCE
#include <cuda.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "fake_gpu.h"

int cudaGetDeviceCount(int *count);
int cudaGetDevice(int *device);
int cudaSetDevice(int device);
int cudaDeviceSynchronize(void);
int cudaDeviceGetAttribute(int *value, int attribute, int device);
int cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes);

CUresult cuInit(unsigned flags) {
    int count;
    (void)flags;
    return cudaGetDeviceCount(&count);
}

CUresult cuDriverGetVersion(int *version) {
    *version = CUDA_VERSION;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count) { return cudaGetDeviceCount(count); }

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    return cudaDeviceGetAttribute(value, attribute, device);
}

CUresult cuGetErrorString(CUresult error, const char **text) {
    *text = error ? "error of the simulated driver" : "no error";
    return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char **text) { return cuGetErrorString(error, text); }

/* ---- contexts: one for each device, which the runtime has made, and those that a library makes for itself ---- */

static CUcontext context_of(int id, int device) { return (CUcontext)(intptr_t)(id * FG_MAX_DEVICES + device + 1); }
static int id_of(CUcontext context) { return (int)((intptr_t)context - 1) / FG_MAX_DEVICES; }
static int device_of(CUcontext context) { return (int)((intptr_t)context - 1) % FG_MAX_DEVICES; }

CUresult cuCtxGetCurrent(CUcontext *context) {
    int id = fg_current_context(), device = fg_current_device();
    *context = id || fg_has_context(device) ? context_of(id, device) : NULL;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
    if (!context) return CUDA_SUCCESS;
    if (!id_of(context)) return cudaSetDevice(device_of(context));
    fg_set_context(id_of(context), device_of(context));
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device) { return cudaGetDevice(device); }
CUresult cuCtxSynchronize(void) { return cudaDeviceSynchronize(); }

CUresult cuCtxPushCurrent(CUcontext context) {
    return fg_push_context(id_of(context), device_of(context)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuCtxPopCurrent(CUcontext *context) {
    CUresult refused = cuCtxGetCurrent(context);
    return refused || fg_pop_context() ? refused : CUDA_ERROR_INVALID_CONTEXT;
}

/* It is current to the thread that made it, until that thread pops it. */
CUresult cuCtxCreate(CUcontext *context, CUctxCreateParams *parameters, unsigned flags, CUdevice device) {
    static int last;
    (void)parameters, (void)flags;
    *context = context_of(__atomic_add_fetch(&last, 1, __ATOMIC_RELAXED), device);
    fg_log("context", "cuCtxCreate", "\"device\": %d", device);
    return cuCtxPushCurrent(*context);
}

CUresult cuCtxDestroy(CUcontext context) {
    if (fg_current_context() == id_of(context)) fg_pop_context();
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    *flags = 0;
    *active = fg_has_context(device);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    *context = context_of(0, device);
    return cudaSetDevice(device);
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
    (void)device;
    return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr address) {
    if (attribute != CU_POINTER_ATTRIBUTE_DEVICE_POINTER) return CUDA_ERROR_NOT_SUPPORTED;
    *(CUdeviceptr *)value = address;
    return CUDA_SUCCESS;
}

/* ---- virtual memory, of which torch's expandable segments are made ---- */

struct physical {
    int device;
    size_t bytes;
};

CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *wanted,
                                       CUmemAllocationGranularity_flags flags) {
    (void)wanted, (void)flags;
    *bytes = FG_GRANULE;
    return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr *start, size_t bytes, size_t alignment, CUdeviceptr wanted,
                             unsigned long long flags) {
    (void)alignment, (void)wanted, (void)flags;
    *start = (CUdeviceptr)fg_reserve(bytes);
    return *start ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemAddressFree(CUdeviceptr start, size_t bytes) {
    fg_unreserve((void *)start, bytes);
    return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *wanted,
                     unsigned long long flags) {
    (void)flags;
    if (!fg_take_memory(wanted->location.id, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    struct physical *memory = malloc(sizeof *memory);
    *memory = (struct physical){wanted->location.id, bytes};
    *handle = (CUmemGenericAllocationHandle)(uintptr_t)memory;
    return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    struct physical *memory = (struct physical *)(uintptr_t)handle;
    fg_give_memory(memory->device, memory->bytes);
    free(memory);
    return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr start, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
    (void)offset, (void)flags;
    fg_map((void *)start, bytes, ((struct physical *)(uintptr_t)handle)->device);
    return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr start, size_t bytes) {
    fg_unmap((void *)start, bytes);
    return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr start, size_t bytes, const CUmemAccessDesc *access, size_t count) {
    (void)start, (void)bytes, (void)access, (void)count;
    return CUDA_SUCCESS;
}

/* ---- kernels that NVRTC or Triton compiled: a module is nothing, a function is its name ---- */

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    (void)image;
    *module = malloc(1);
    return CUDA_SUCCESS;
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, CUjit_option *options, void **values) {
    (void)count, (void)options, (void)values;
    return cuModuleLoadData(module, image);
}

CUresult cuModuleLoad(CUmodule *module, const char *file) { return cuModuleLoadData(module, file); }

CUresult cuModuleUnload(CUmodule module) {
    free(module);
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    (void)module;
    *function = (CUfunction)strdup(name); /* kept: traces name it */
    return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
    (void)function;
    *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : attribute == CU_FUNC_ATTRIBUTE_NUM_REGS ? 32 : 0;
    return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
    (void)function, (void)attribute, (void)value;
    return CUDA_SUCCESS;
}

CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config) {
    (void)function, (void)config;
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int block_size, size_t shared) {
    (void)function, (void)shared;
    *blocks = block_size > 64 ? 2048 / block_size : 32;
    return CUDA_SUCCESS;
}

static CUresult launch(CUfunction function, const unsigned grid[3], const unsigned block[3], unsigned shared,
                       CUstream stream) {
    const char *name = (const char *)function;
    return fg_launch(stream, name, fg_kernel_ns(name, grid, block, NULL), grid, block, shared);
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned shared, CUstream stream, void **arguments,
                        void **extra) {
    (void)arguments, (void)extra;
    return launch(function, (unsigned[]){grid_x, grid_y, grid_z}, (unsigned[]){block_x, block_y, block_z}, shared, stream);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **arguments, void **extra) {
    (void)arguments, (void)extra;
    return launch(function, (unsigned[]){config->gridDimX, config->gridDimY, config->gridDimZ},
                  (unsigned[]){config->blockDimX, config->blockDimY, config->blockDimZ}, config->sharedMemBytes,
                  config->hStream);
}
