"""Measured values built by hand: the smallest ones that show a problem, and healthy ones beside them."""

from __future__ import annotations

from typing import Any

import pytest

from perfkit.measures.results import DeviceTime, Measured, StepBreakdown
from perfkit.run.records import Loader, Phases, Rank

MS = 1_000_000


class Build:
    """Builds parts of `Measured` from times in ms."""

    def step(self, wall: float, source: str = "steps.jsonl, 40 steps", **phases: float) -> StepBreakdown:
        wall_ns = round(wall * MS)
        return StepBreakdown(
            steps=40,
            wall_ns=wall_ns,
            median_ns=wall_ns,
            p10_ns=wall_ns,
            p90_ns=wall_ns,
            phases_ns=Phases(**{name: round(ms * MS) for name, ms in phases.items()}),
            source=source,
        )

    def device(self, window: float, **parts: Any) -> DeviceTime:
        """A device whose ``causes`` make up its idle time; times in ms, over 10 steps."""
        times = {name: round(parts.pop(name, 0) * MS) for name in ("compute", "communication", "copy")}
        causes = {name: round(ms * MS) for name, ms in parts.pop("causes", {}).items()}
        exposed_communication = round(parts.pop("exposed_communication", 0) * MS)
        exposed_copy = round(parts.pop("exposed_copy", 0) * MS)
        idle_ns = sum(causes.values())
        return DeviceTime(
            device=0,
            name="A100",
            window_ns=round(window * MS),
            busy_ns=round(window * MS) - idle_ns,
            idle_ns=idle_ns,
            compute_ns=times["compute"],
            communication_ns=times["communication"],
            copy_ns=times["copy"],
            memset_ns=0,
            copies_ns={"HtoD": times["copy"]},
            copy_bytes={"HtoD": times["copy"]},
            pageable_ns=round(parts.pop("pageable", 0) * MS),
            overlap_ns=round(parts.pop("overlap", 0) * MS),
            exposed_communication_ns=exposed_communication,
            exposed_copy_ns=exposed_copy,
            kernels=1000,
            mean_kernel_ns=50_000,
            causes=causes,
            longest=(),
            unlinked_share=0.0,
            graph_launches=0,
            steps=10,
            **parts,
        )

    def rank(self, *, workers: int = 0, cpus: int = 8, threads: int = 1) -> Rank:
        loader = Loader(
            dataset="Reviews",
            batch_size=32,
            num_workers=workers,
            pin_memory=False,
            prefetch_factor=None,
            persistent_workers=False,
        )
        settings = {"cpu_count": str(cpus), "torch.num_threads": str(threads)}
        return Rank(rank=0, launch_id="x", host="h", pid=1, start_ns=0, settings=settings, loaders=(loader,), steps=40)

    def measured(self, **parts: Any) -> Measured:
        return Measured(source="runs/train", **parts)


@pytest.fixture
def build() -> Build:
    return Build()
