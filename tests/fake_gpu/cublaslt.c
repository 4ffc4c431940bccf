/* cuBLASLt: descriptors are kept, one algorithm fits all, and a product takes the time of its operations. */
#include <cublasLt.h>
#include <stdlib.h>
#include <string.h>
#include "fake_gpu.h"

/* Whatever a caller's opaque struct holds for us: handles here are pointers to these. */
struct layout { cudaDataType type; uint64_t rows, columns; int32_t batch; };
struct description { cublasComputeType_t compute; cublasOperation_t transpose_a; };
struct preference { int unused; };

size_t cublasLtGetVersion(void) { return CUBLAS_VERSION; }

#define DESTROY(function, type)                                                                                        \
    cublasStatus_t function(type made) { free((void *)made); return CUBLAS_STATUS_SUCCESS; }
DESTROY(cublasLtDestroy, cublasLtHandle_t)
DESTROY(cublasLtMatmulDescDestroy, cublasLtMatmulDesc_t)
DESTROY(cublasLtMatrixLayoutDestroy, cublasLtMatrixLayout_t)
DESTROY(cublasLtMatmulPreferenceDestroy, cublasLtMatmulPreference_t)

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
    *handle = malloc(1);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *made, cublasComputeType_t compute, cudaDataType_t scale) {
    (void)scale;
    struct description *description = calloc(1, sizeof *description);
    description->compute = compute;
    *made = (void *)description;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t made, cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes) {
    struct description *description = (void *)made;
    if (attribute == CUBLASLT_MATMUL_DESC_TRANSA && bytes >= sizeof(int32_t))
        description->transpose_a = *(const int32_t *)value;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *made, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t stride) {
    (void)stride;
    struct layout *layout = malloc(sizeof *layout);
    *layout = (struct layout){type, rows, columns, 1};
    *made = (void *)layout;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t made, cublasLtMatrixLayoutAttribute_t attribute,
                                                const void *value, size_t bytes) {
    if (attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT && bytes >= sizeof(int32_t))
        ((struct layout *)made)->batch = *(const int32_t *)value;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *made) {
    *made = calloc(1, sizeof(struct preference));
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t made,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void *value,
                                                    size_t bytes) {
    (void)made, (void)attribute, (void)value, (void)bytes;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int asked,
                                              cublasLtMatmulHeuristicResult_t results[], int *found) {
    (void)handle, (void)description, (void)a, (void)b, (void)c, (void)d, (void)preference, (void)asked;
    memset(results, 0, sizeof *results); /* CUBLAS_STATUS_SUCCESS, no workspace */
    *found = 1;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t made, const void *alpha, const void *A,
                              cublasLtMatrixLayout_t a_made, const void *B, cublasLtMatrixLayout_t b_made,
                              const void *beta, const void *C, cublasLtMatrixLayout_t c_made, void *D,
                              cublasLtMatrixLayout_t d_made, const cublasLtMatmulAlgo_t *algorithm, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
    (void)handle, (void)alpha, (void)A, (void)B, (void)b_made, (void)beta, (void)C, (void)c_made, (void)D;
    (void)algorithm, (void)workspace, (void)workspace_bytes;
    const struct description *description = (void *)made;
    const struct layout *a = (void *)a_made, *d = (void *)d_made;
    double inner = (double)(description->transpose_a == CUBLAS_OP_N ? a->columns : a->rows);
    bool tensor_float = description->compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    return fg_product(stream, a->type, tensor_float, (double)d->rows, (double)d->columns, inner, d->batch)
               ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
}
