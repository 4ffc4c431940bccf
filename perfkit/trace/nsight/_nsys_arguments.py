"""The arguments of device work in an nsys export, under Kineto's names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from perfkit.trace.columns import Kind, Kinds, positions_in
from perfkit.trace.file_text import file_stamp
from perfkit.trace.intervals import Codes, Ints
from perfkit.trace.nsight._nsys_metadata import Multiprocessors
from perfkit.trace.nsight._nsys_tables import NsysTables
from perfkit.trace.occupancy import MultiprocessorLimits, occupancy_percent

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSETS = "CUPTI_ACTIVITY_KIND_MEMSET"

KERNEL_COLUMNS = (
    *("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ", "registersPerThread", "staticSharedMemory"),
    *("dynamicSharedMemory", "contextId", "graphId", "graphNodeId"),
)
COPY_COLUMNS = ("contextId", "bytes", "graphId", "graphNodeId")


class NsysArguments:
    """Reads the arguments of rows again from the export; rows of the host have none."""

    def __init__(
        self,
        path: Path,
        kind: Kinds,
        device: Codes,
        row_id: Ints,
        duration_ns: Ints,
        devices: dict[int, Multiprocessors],
    ) -> None:
        self.path = path
        self.stamp = file_stamp(path)
        # Only rows with arguments: most rows are the host's.
        self.rows = np.flatnonzero(row_id >= 0)
        self.kind, self.device = kind[self.rows], device[self.rows]
        self.row_id, self.duration_ns = row_id[self.rows], duration_ns[self.rows]
        self.devices = devices

    def __call__(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """The arguments of each row."""
        file_stamp(self.path, self.stamp)
        wanted = np.asarray(rows, np.int64)
        found: list[dict[str, Any]] = [{} for _ in rows]
        at = positions_in(self.rows, wanted)
        if not (at >= 0).any():
            return found
        with NsysTables(self.path) as tables:
            for kind, table, columns in (
                (Kind.KERNEL, KERNELS, KERNEL_COLUMNS),
                (Kind.COPY, COPIES, COPY_COLUMNS),
                (Kind.MEMSET, MEMSETS, COPY_COLUMNS),
            ):
                places = np.flatnonzero((at >= 0) & (self.kind[at] == kind))
                # In the order of the file, so that adjacent rows are read together.
                places = places[np.argsort(self.row_id[at[places]], kind="stable")]
                read = tables.rows(table, self.row_id[at[places]].tolist(), *columns)
                for place, row in zip(places.tolist(), read, strict=True):
                    whole = {c: v for c, v in zip(columns, row, strict=True) if type(v) is int}
                    found[place] = dict(self._args(int(at[place]), whole))
        return found

    def _args(self, at: int, row: dict[str, int]) -> Iterator[tuple[str, Any]]:
        device = int(self.device[at])
        yield "device", device
        for key, column in (("context", "contextId"), ("graph id", "graphId"), ("graph node id", "graphNodeId")):
            if column in row:
                yield key, row[column]
        if self.kind[at] == Kind.KERNEL:
            yield from self._launch(row, *self.devices.get(device, (None, None)))
        elif "bytes" in row:
            yield "bytes", row["bytes"]
            if duration := int(self.duration_ns[at]):
                yield "memory bandwidth (GB/s)", row["bytes"] / duration

    def _launch(
        self, row: dict[str, int], multiprocessors: int | None, limits: MultiprocessorLimits | None
    ) -> Iterator[tuple[str, Any]]:
        grid = [row.get(f"grid{axis}") for axis in "XYZ"]
        block = [row.get(f"block{axis}") for axis in "XYZ"]
        registers = row.get("registersPerThread")
        shared = None
        if "staticSharedMemory" in row or "dynamicSharedMemory" in row:
            shared = row.get("staticSharedMemory", 0) + row.get("dynamicSharedMemory", 0)
        yield from (("grid", grid), ("block", block)) if None not in grid + block else ()
        if registers is not None:
            yield "registers per thread", registers
        if shared is not None:
            yield "shared memory", shared
        if None in grid or None in block or multiprocessors is None:
            return
        threads = prod(size for size in block if size is not None)
        each = prod(size for size in grid if size is not None) / multiprocessors
        yield "blocks per SM", each
        if limits is None:
            return
        yield "warps per SM", each * threads / limits.warp_size
        if registers is None or shared is None:
            return
        occupancy = occupancy_percent(
            limits, threads=threads, registers=registers, shared_bytes=shared, blocks_per_multiprocessor=each
        )
        if occupancy is not None:
            yield "est. achieved occupancy %", occupancy
