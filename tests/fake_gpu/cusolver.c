/* cuSOLVER: handles. build.py generates the rest from cusolverDn.h: workspaces are small, every factorisation succeeds. */
#include "fake_cusolver.h"
#include "fake_handle.h"

struct cusolverDnContext { cudaStream_t stream; };

/* One kernel for a factorisation of order n: two thirds of n cubed operations in float32. */
cusolverStatus_t fake_cusolver(cusolverDnHandle_t handle, const char *name, double n) {
    unsigned grid[3] = {(unsigned)(n / 64) + 1, 1, 1}, block[3] = {256, 1, 1};
    int64_t ns = 5000 + (int64_t)(n * n * n * 2 / 3 / 20e3);
    return fg_launch(handle->stream, name, ns, grid, block, 0) ? CUSOLVER_STATUS_EXECUTION_FAILED : CUSOLVER_STATUS_SUCCESS;
}

CREATE(cusolverStatus_t, cusolverDnHandle_t, cusolverDnCreate)
HANDLE(cusolverStatus_t, cusolverDnHandle_t, cusolverDnDestroy, cusolverDnSetStream, cusolverDnGetStream)

/* Parameters that nothing here reads. */
#define OPAQUE(type, create, destroy)                                                                                  \
    cusolverStatus_t create(type *made) { return (*made = malloc(1)) ? CUSOLVER_STATUS_SUCCESS : CUSOLVER_STATUS_ALLOC_FAILED; } \
    cusolverStatus_t destroy(type made) { free(made); return CUSOLVER_STATUS_SUCCESS; }
OPAQUE(cusolverDnParams_t, cusolverDnCreateParams, cusolverDnDestroyParams)
OPAQUE(gesvdjInfo_t, cusolverDnCreateGesvdjInfo, cusolverDnDestroyGesvdjInfo)
OPAQUE(syevjInfo_t, cusolverDnCreateSyevjInfo, cusolverDnDestroySyevjInfo)

/* Settings of a method, which computes nothing here. */
#define SETTING(function, info_t, value_t)                                                                             \
    cusolverStatus_t function(info_t info, value_t value) { (void)info, (void)value; return CUSOLVER_STATUS_SUCCESS; }
SETTING(cusolverDnXgesvdjSetTolerance, gesvdjInfo_t, double)
SETTING(cusolverDnXgesvdjSetMaxSweeps, gesvdjInfo_t, int)
SETTING(cusolverDnXgesvdjSetSortEig, gesvdjInfo_t, int)
SETTING(cusolverDnXsyevjSetTolerance, syevjInfo_t, double)
SETTING(cusolverDnXsyevjSetMaxSweeps, syevjInfo_t, int)
SETTING(cusolverDnXsyevjSetSortEig, syevjInfo_t, int)
