"""Which kind a Kineto event has, by its category, and which kinds belong to a device."""

from __future__ import annotations

import numpy as np

from perfkit.trace.columns import DEVICE_KINDS, Kind

#: The name of the instants of allocations and frees, which have no category.
MEMORY = "[memory]"

_CATEGORIES = {
    Kind.OP: "cpu_op operator",
    Kind.RANGE: "user_annotation",
    Kind.PYTHON: "python_function python",
    Kind.RUNTIME: "runtime driver cuda_runtime cuda_driver hip_runtime xpu_runtime xpu_driver mtia_runtime glow_runtime"
    " privateuse1_runtime privateuse1_driver",
    Kind.KERNEL: "kernel concurrent_kernel mtia_ccp_events",
    Kind.COPY: "gpu_memcpy memcpy",
    Kind.MEMSET: "gpu_memset memset",
    Kind.SYNC: "cuda_sync cuda_event xpu_sync",
    Kind.PROJECTION: "gpu_user_annotation",
    Kind.OVERHEAD: "overhead",
    Kind.MEMORY: MEMORY,
}
#: Kinds by the file's ``cat``, in all versions of the format.
KIND_OF = {category: kind for kind, categories in _CATEGORIES.items() for category in categories.split()}

#: Prefixes of the names of ranges that traces of 2021 and 2022 record as ops.
RANGE_PREFIXES = ("ProfilerStep", "enumerate(DataLoader)#", "enumerate(DataPipe)#", "Optimizer.")

#: By kind: whether the event is drawn in a row of a device.
ON_DEVICE_TRACK = np.zeros(max(Kind) + 1, np.int32)
ON_DEVICE_TRACK[[*DEVICE_KINDS, Kind.SYNC, Kind.PROJECTION]] = 1

#: By kind: whether the event names its device.
HAS_DEVICE = np.zeros(max(Kind) + 1, bool)
HAS_DEVICE[[*DEVICE_KINDS, Kind.SYNC, Kind.MEMORY]] = True
