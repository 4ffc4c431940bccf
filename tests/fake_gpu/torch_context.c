/* Functions of torch's that this library answers: torch calls them through its symbol table, and what is preloaded comes
   first. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include "fake_gpu.h"

/* torch asks its own context whether the user wants cuDNN. Here the answer is no: cuDNN needs a device, and is not
   simulated. The functions are at::Context::userEnabledCuDNN() and userEnabledCuDNNSDP(). */
bool _ZNK2at7Context16userEnabledCuDNNEv(const void *context) {
    (void)context;
    return false;
}

bool _ZNK2at7Context19userEnabledCuDNNSDPEv(const void *context) {
    (void)context;
    return false;
}

/* c10::reportMemoryUsageToProfiler(void *, int64_t, size_t, size_t, c10::Device): torch's allocator calls it with each block
   that it hands out (bytes > 0) or takes back. What a block held before is zeroed, as if it were new: kernels write nothing,
   and of sizes that the host reads (nonzero, unique, printing) old bytes would make any number. */
struct device { int8_t type, index; }; /* type 1 is CUDA */

void _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE(void *start, int64_t bytes, size_t allocated, size_t reserved,
                                                           struct device device) {
    static void (*torchs)(void *, int64_t, size_t, size_t, struct device);
    if (device.type == 1 && bytes > 0) fg_clear(start, (size_t)bytes);
    if (!torchs) torchs = dlsym(dlopen("libc10.so", RTLD_LAZY | RTLD_NOLOAD), __func__); /* Python loaded it for itself */
    torchs(start, bytes, allocated, reserved, device);
}
