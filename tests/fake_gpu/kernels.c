/* Kernels: they compute nothing and take the time that their launch suggests. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <library_types.h>
#include "runtime.h"

/* The shortest kernels of traces take about this. */
enum { SHORTEST_NS = 2000 };
/* torch's element-wise kernels give a thread four numbers of two or three tensors: 48 bytes in float32. */
static const double BYTES_PER_THREAD = 48;
/* An H100 SXM by its data sheet, at what large kernels reach of it: bytes per ns. */
static const double MEMORY_RATE = 0.8 * 3350;
/* Its clock, in cycles per ns: what torch.cuda._sleep counts in. */
static const double CLOCK = 1.98;

int64_t fg_kernel_ns(const char *name, const unsigned grid[3], const unsigned block[3], void **arguments) {
    /* torch.cuda._sleep(cycles): the one kernel whose argument says how long it runs. */
    if (arguments && strstr(name, "spin_kernel")) return (int64_t)((double)*(int64_t *)arguments[0] / CLOCK);
    double threads = (double)grid[0] * grid[1] * grid[2] * block[0] * block[1] * block[2];
    return SHORTEST_NS + (int64_t)(threads * BYTES_PER_THREAD / MEMORY_RATE);
}

/* ---- the table of kernels, which the program's static constructors fill: by the address of the host's stub ---- */

struct kernel {
    const void *stub;
    const char *name;
};

static struct kernel **kernels;
static size_t kernel_count, kernel_room; /* a power of two */

static struct kernel **kernel_slot(const void *stub) {
    size_t at = ((uintptr_t)stub >> 3) * 0x9E3779B97F4A7C15ull >> 20 & (kernel_room - 1);
    while (kernels[at] && kernels[at]->stub != stub) at = (at + 1) & (kernel_room - 1);
    return &kernels[at];
}

static void grow(void) {
    struct kernel **old = kernels;
    size_t old_room = kernel_room;
    kernel_room = kernel_room ? 2 * kernel_room : 1 << 16;
    kernels = calloc(kernel_room, sizeof *kernels);
    for (size_t i = 0; i < old_room; i++)
        if (old[i]) *kernel_slot(old[i]->stub) = old[i];
    free(old);
}

void **__cudaRegisterFatBinary(void *binary) {
    void **module = malloc(sizeof *module);
    *module = binary;
    return module;
}

void __cudaRegisterFatBinaryEnd(void **module) { (void)module; }
void __cudaUnregisterFatBinary(void **module) { free(module); }

char __cudaInitModule(void **module) {
    (void)module;
    return 1;
}

void __cudaRegisterFunction(void **module, const char *stub, char *device_stub, const char *name, int thread_limit,
                            uint3 *thread, uint3 *block_index, dim3 *block, dim3 *grid, int *warp) {
    (void)module, (void)device_stub, (void)thread_limit, (void)thread, (void)block_index, (void)block, (void)grid;
    (void)warp;
    pthread_mutex_lock(&fg_lock);
    if (2 * (kernel_count + 1) > kernel_room) grow();
    struct kernel **slot = kernel_slot(stub);
    if (!*slot) {
        *slot = malloc(sizeof **slot);
        **slot = (struct kernel){stub, name};
        kernel_count++;
    }
    pthread_mutex_unlock(&fg_lock);
}

static struct kernel *kernel_of(const void *stub) {
    static struct kernel unknown = {NULL, "unknown_kernel"};
    pthread_mutex_lock(&fg_lock);
    struct kernel *found = kernel_room ? *kernel_slot(stub) : NULL;
    pthread_mutex_unlock(&fg_lock);
    return found ? found : &unknown;
}

/* ---- launches ---- */

static __thread struct { dim3 grid, block; size_t shared; cudaStream_t stream; } pushed[16];
static __thread unsigned pushes;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct CUstream_st *stream) {
    if (pushes == 16) return 1;
    pushed[pushes].grid = grid;
    pushed[pushes].block = block;
    pushed[pushes].shared = shared;
    pushed[pushes++].stream = stream;
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
    if (!pushes) return cudaErrorMissingConfiguration;
    pushes--;
    *grid = pushed[pushes].grid;
    *block = pushed[pushes].block;
    *shared = pushed[pushes].shared;
    *(cudaStream_t *)stream = pushed[pushes].stream;
    return cudaSuccess;
}

static cudaError_t launch(struct call *call, const struct kernel *kernel, dim3 grid, dim3 block, void **arguments,
                          size_t shared, cudaStream_t stream) {
    if (!grid.x || !grid.y || !grid.z || !block.x || !block.y || !block.z || block.x * block.y * block.z > 1024)
        return cudaErrorInvalidConfiguration;
    struct fg_work work = {.kind = FG_KERNEL, .name = kernel->name, .grid = {grid.x, grid.y, grid.z},
                           .block = {block.x, block.y, block.z}, .shared_bytes = (unsigned)shared};
    work.ns = fg_kernel_ns(kernel->name, work.grid, work.block, arguments);
    return submit(stream_of(stream), &work, call->correlation, NULL);
}

cudaError_t cudaLaunchKernel(const void *stub, dim3 grid, dim3 block, void **arguments, size_t shared,
                             cudaStream_t stream) {
    BEGIN(cudaLaunchKernel);
    return end(&call, launch(&call, kernel_of(stub), grid, block, arguments, shared, stream));
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *stub, void **arguments) {
    BEGIN(cudaLaunchKernelExC);
    return end(&call, launch(&call, kernel_of(stub), config->gridDim, config->blockDim, arguments,
                             config->dynamicSmemBytes, config->stream));
}

/* CUDA 13 compiles a launch into these two. */
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *stub) {
    *kernel = (cudaKernel_t)kernel_of(stub);
    return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared,
                               cudaStream_t stream) {
    BEGIN(cudaLaunchKernel);
    return end(&call, launch(&call, (struct kernel *)kernel, grid, block, arguments, shared, stream));
}

int fg_launch(void *stream, const char *name, int64_t ns, const unsigned grid[3], const unsigned block[3],
              unsigned shared_bytes) {
    BEGIN(cudaLaunchKernelExC);
    struct fg_work work = {.kind = FG_KERNEL, .name = name, .ns = ns, .grid = {grid[0], grid[1], grid[2]},
                           .block = {block[0], block[1], block[2]}, .shared_bytes = shared_bytes};
    return end(&call, submit(stream_of(stream), &work, call.correlation, NULL));
}

/* Names as cuBLAS has them on an H100, and the data sheet's dense peaks at 70%: operations per ns. */
int fg_product(void *stream, int type, bool tensor_float, double m, double n, double k, double batch) {
    const char *name;
    double peak;
    switch (type) {
    case CUDA_R_16F:
        name = "sm90_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas";
        peak = 0.7 * 989e3;
        break;
    case CUDA_R_16BF:
        name = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas";
        peak = 0.7 * 989e3;
        break;
    case CUDA_R_64F: case CUDA_C_64F:
        name = "sm90_xmma_gemm_f64f64_f64f64_f64_nn_n_tilesize128x128x16_cublas";
        peak = 0.7 * 67e3;
        break;
    default:
        name = tensor_float ? "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas"
                            : "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4_execute_kernel__5x_cublas";
        peak = 0.7 * (tensor_float ? 494e3 : 67e3);
    }
    unsigned grid[3] = {(unsigned)((m + 127) / 128), (unsigned)((n + 127) / 128), (unsigned)(batch < 1 ? 1 : batch)};
    unsigned block[3] = {256, 1, 1};
    return fg_launch(stream, name, SHORTEST_NS + (int64_t)(2 * m * n * k * batch / peak), grid, block, 98304);
}

/* ---- what a launch asks of the kernel ---- */

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *stub) {
    (void)stub;
    memset(attributes, 0, sizeof *attributes);
    attributes->maxThreadsPerBlock = 1024;
    attributes->numRegs = 32;
    attributes->ptxVersion = attributes->binaryVersion = 90;
    attributes->maxDynamicSharedSizeBytes = 232448;
    return failed(usable());
}

cudaError_t cudaFuncSetAttribute(const void *stub, enum cudaFuncAttribute attribute, int value) {
    (void)stub, (void)attribute, (void)value;
    return failed(usable());
}

/* 2048 threads a multiprocessor, at most 32 blocks. */
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *stub, int block_size,
                                                                   size_t shared, unsigned flags) {
    (void)stub, (void)shared, (void)flags;
    *blocks = block_size > 64 ? 2048 / block_size : 32;
    return failed(usable());
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *stub, int block_size, size_t shared) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, stub, block_size, shared, 0);
}

/* ---- cudaProfilerStart and -Stop: the log says how much the device still had to do ---- */

static cudaError_t log_profiler(struct call *call) {
    int64_t queued = device_tail(fg_current_device()) - fg_now();
    fg_log("profiler", fg_names[call->name], "\"queued_ns\": %lld", (long long)(queued > 0 ? queued : 0));
    return end(call, cudaSuccess);
}

cudaError_t cudaProfilerStart(void) {
    BEGIN(cudaProfilerStart);
    return log_profiler(&call);
}

cudaError_t cudaProfilerStop(void) {
    BEGIN(cudaProfilerStop);
    return log_profiler(&call);
}
