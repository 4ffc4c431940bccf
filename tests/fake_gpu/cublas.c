/* cuBLAS: handles. build.py generates the calculations from cublas_api.h: each is a kernel that takes its time. */
#include <cublas_v2.h>
#include "fake_cublas.h"
#include "fake_handle.h"

struct cublasContext {
    cudaStream_t stream;
    cublasMath_t math;
    cublasPointerMode_t pointers;
};

/* The types of real and complex numbers by the letter in a function's name; a number of batches of 0 means one product. */
cublasStatus_t fake_cublas(cublasHandle_t handle, int type, double m, double n, double k, double batch) {
    bool tensor_float = (handle->math & CUBLAS_TF32_TENSOR_OP_MATH) != 0;
    return fg_product(handle->stream, type, tensor_float, m, n, k, batch) ? CUBLAS_STATUS_EXECUTION_FAILED
                                                                          : CUBLAS_STATUS_SUCCESS;
}

/* It allocates, which a capture forbids: on an H200 cublasCreate then answered this, and the capture was invalid. */
cublasStatus_t cublasCreate_v2(cublasHandle_t *made) {
    if (fg_unsafe_call()) return CUBLAS_STATUS_NOT_INITIALIZED;
    *made = calloc(1, sizeof **made);
    return CUBLAS_STATUS_SUCCESS;
}

HANDLE(cublasStatus_t, cublasHandle_t, cublasDestroy_v2, cublasSetStream_v2, cublasGetStream_v2)
ACCESS(cublasStatus_t, cublasSetMathMode, cublasGetMathMode, cublasHandle_t, cublasMath_t, math)
ACCESS(cublasStatus_t, cublasSetPointerMode_v2, cublasGetPointerMode_v2, cublasHandle_t, cublasPointerMode_t, pointers)

cublasStatus_t cublasGetVersion_v2(cublasHandle_t handle, int *version) {
    (void)handle;
    *version = CUBLAS_VERSION;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void *workspace, size_t bytes) {
    (void)handle, (void)workspace, (void)bytes;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetSmCountTarget(cublasHandle_t handle, int count) {
    (void)handle, (void)count;
    return CUBLAS_STATUS_SUCCESS;
}
