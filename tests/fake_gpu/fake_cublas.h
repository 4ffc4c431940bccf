/* What the generated functions of cuBLAS call. */
#pragma once
#include <cublas_v2.h>
#include "fake_gpu.h"

cublasStatus_t fake_cublas(cublasHandle_t handle, int type, double m, double n, double k, double batch);
