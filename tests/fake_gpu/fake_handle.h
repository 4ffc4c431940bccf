/* What the libraries' handles have in common: each is a struct of its own, zeros at first, with the stream to work on. */
#pragma once
#include <stdlib.h>

#define ACCESS(status_t, setter, getter, handle_t, field_t, field)                                                     \
    status_t setter(handle_t handle, field_t value) { handle->field = value; return 0; }                               \
    status_t getter(handle_t handle, field_t *value) { *value = handle->field; return 0; }
/* 0 is success for all of them. */
#define CREATE(status_t, handle_t, create)                                                                             \
    status_t create(handle_t *made) { *made = calloc(1, sizeof **made); return 0; }
#define HANDLE(status_t, handle_t, destroy, set_stream, get_stream)                                                    \
    status_t destroy(handle_t made) { free(made); return 0; }                                                          \
    ACCESS(status_t, set_stream, get_stream, handle_t, cudaStream_t, stream)
