"""Unified memory in an nsys export: page faults, and what was copied between host and device because of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

from perfkit.trace.nsight._nsys_arguments import COPIES
from perfkit.trace.nsight._nsys_metadata import MAX_NS
from perfkit.trace.nsight._nsys_tables import NsysTables
from perfkit.trace.nsight.nsys_threads import nsys_export_of

#: Kinds of copies of unified memory (ENUM_CUDA_MEMCPY_OPER).
_MIGRATIONS = {11: "migration HtoD", 12: "migration DtoH", 13: "migration DtoD"}


class UnifiedMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Page faults or migrations of one kind; ``bytes`` and ``total_ns`` are None for what has none."""

    kind: str
    count: int
    bytes: int | None = None
    total_ns: int | None = None


def read_unified_memory(path: Path) -> tuple[UnifiedMemory, ...]:
    """Page faults of host and device, and migrations by direction; empty where nsys recorded none.

    Raises:
        TraceError: the file is no SQLite database, or damaged so that nothing can be read.
    """
    with NsysTables(nsys_export_of(path)) as tables:
        return tuple(_rows(tables))


def _rows(tables: NsysTables) -> Iterator[UnifiedMemory]:
    cpu = sum(block["start"].size for block in tables.integers("CUDA_UM_CPU_PAGE_FAULT_EVENTS", {"start": 0}))
    if cpu:
        yield UnifiedMemory(kind="page faults on the host", count=cpu)
    faults = total_ns = 0
    columns = {"start": MAX_NS, "end": MAX_NS, "numberOfPageFaults": 1}
    for block in tables.integers("CUDA_UM_GPU_PAGE_FAULT_EVENTS", columns):
        usable = (np.abs(block["start"]) < MAX_NS) & (np.abs(block["end"]) < MAX_NS)
        faults += int(np.maximum(block["numberOfPageFaults"], 0).sum())
        total_ns += int(np.maximum(block["end"] - block["start"], 0)[usable].sum())
    if faults:
        yield UnifiedMemory(kind="page faults on the device", count=faults, total_ns=total_ns)
    sums = {kind: [0, 0, 0] for kind in _MIGRATIONS}
    columns = {"start": MAX_NS, "end": MAX_NS, "copyKind": 0, "bytes": 0}
    for block in tables.integers(COPIES, columns):
        usable = (np.abs(block["start"]) < MAX_NS) & (np.abs(block["end"]) < MAX_NS)
        for kind, found in sums.items():
            mine = usable & (block["copyKind"] == kind)
            found[0] += int(mine.sum())
            found[1] += int(np.maximum(block["bytes"], 0)[mine].sum())
            found[2] += int(np.maximum(block["end"] - block["start"], 0)[mine].sum())
    for kind, (count, moved, ns) in sums.items():
        if count:
            yield UnifiedMemory(kind=_MIGRATIONS[kind], count=count, bytes=moved, total_ns=ns)
