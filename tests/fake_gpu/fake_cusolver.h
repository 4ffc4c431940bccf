/* What the generated functions of cuSOLVER call. */
#pragma once
#include <cusolverDn.h>
#include "fake_gpu.h"

cusolverStatus_t fake_cusolver(cusolverDnHandle_t handle, const char *name, double n);
