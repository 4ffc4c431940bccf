"""Which kind a Kineto event has, by its category, and which kinds belong to a device."""

from __future__ import annotations

import numpy as np

from perfkit.trace.columns import DEVICE_KINDS, Kind

#: The name of the instants of allocations and frees, which have no category.
MEMORY = "[memory]"

#: Kinds by the file's ``cat``, in all versions of the format.
KIND_OF = {
    "cpu_op": Kind.OP,
    "operator": Kind.OP,
    "user_annotation": Kind.RANGE,
    "python_function": Kind.PYTHON,
    "python": Kind.PYTHON,
    "kernel": Kind.KERNEL,
    "concurrent_kernel": Kind.KERNEL,
    "mtia_ccp_events": Kind.KERNEL,
    "gpu_memcpy": Kind.COPY,
    "memcpy": Kind.COPY,
    "gpu_memset": Kind.MEMSET,
    "memset": Kind.MEMSET,
    "cuda_sync": Kind.SYNC,
    "cuda_event": Kind.SYNC,
    "xpu_sync": Kind.SYNC,
    "gpu_user_annotation": Kind.PROJECTION,
    "overhead": Kind.OVERHEAD,
    MEMORY: Kind.MEMORY,
    **dict.fromkeys(
        (
            *("runtime", "driver", "cuda_runtime", "cuda_driver", "hip_runtime", "xpu_runtime", "xpu_driver"),
            *("mtia_runtime", "glow_runtime", "privateuse1_runtime", "privateuse1_driver"),
        ),
        Kind.RUNTIME,
    ),
}

#: Prefixes of the names of ranges that traces of 2021 and 2022 record as ops.
RANGE_PREFIXES = ("ProfilerStep", "enumerate(DataLoader)#", "enumerate(DataPipe)#", "Optimizer.")

#: By kind: whether the event is drawn in a row of a device.
ON_DEVICE_TRACK = np.zeros(max(Kind) + 1, np.int32)
ON_DEVICE_TRACK[[*DEVICE_KINDS, Kind.SYNC, Kind.PROJECTION]] = 1

#: By kind: whether the event names its device.
HAS_DEVICE = np.zeros(max(Kind) + 1, bool)
HAS_DEVICE[[*DEVICE_KINDS, Kind.SYNC, Kind.MEMORY]] = True
