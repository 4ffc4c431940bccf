"""Measured values built by hand: the smallest ones that show a problem, and healthy ones beside them."""

from __future__ import annotations

from typing import Any

import pytest

from perfkit.measures.results.device import DeviceTime
from perfkit.measures.results.host import HostKind, HostLine, HostWork
from perfkit.measures.results.kernels import Kernels, KernelTime
from perfkit.measures.results.measured import Measured
from perfkit.measures.results.patterns import Patterns
from perfkit.measures.results.steps import StepBreakdown
from perfkit.run.records import Lines, Loader, Phases, Rank, TracedLine

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

    def work(self, kind: HostKind, ms: float, samples: int = 100, **fields: Any) -> HostWork:
        """Host work of one line."""
        line = HostLine(
            **{"file": "train.py", "line": 12, "function": "prepare", "phase": "forward", **fields},
            samples=samples,
            host_ns=round(ms * MS),
        )
        return HostWork(kind=kind, samples=samples, host_ns=line.host_ns, lines=(line,))

    def patterns(self, *, step_ms: float | None = None, **parts: Any) -> Patterns:
        """Patterns of a step of ``step_ms`` on the host, of a device where it is None."""
        step_ns = round(step_ms * MS) if step_ms is not None else None
        return Patterns(source="stacks-0.pt.trace.json.gz", steps=1, step_ns=step_ns, has_shapes=True, **parts)

    def loop(self, file: str, *, line: int, loop_line: int, runs: int) -> Lines:
        """One line of a loop, as the step traced by line tells it."""
        row = TracedLine(
            file=file,
            line=line,
            function="f",
            owner="user",
            phase="forward",
            runs=runs,
            host_ns=MS,
            loop_line=loop_line,
        )
        return Lines(period_ns=MS, steps=40, traced=(row,))

    def kernels(self, *rows: tuple[str, str, float], precisions: tuple[str, ...] = (), **fields: Any) -> Kernels:
        """Kernels by (name, class, ms), each of 1,000 launches, in these precisions (float32 by default)."""
        given: list[Any] = list(precisions) or ["float32"] * len(rows)
        found = tuple(
            KernelTime(
                name=name,
                count=1000,
                total_ns=round(ms * MS),
                mean_ns=ms * MS / 1000,
                deviation_ns=0,
                min_ns=1,
                max_ns=1,
                kernel_class=kind,  # type: ignore[arg-type]  # a test writes what it means
                precision=precision,
                **{"tensor_cores": False} | fields,
            )
            for (name, kind, ms), precision in zip(rows, given, strict=True)
        )
        classes: dict[str, int] = {}
        by_precision: dict[str, int] = {}
        for row in found:
            classes[row.kernel_class] = classes.get(row.kernel_class, 0) + row.total_ns
            by_precision[row.precision or "unknown"] = by_precision.get(row.precision or "unknown", 0) + row.total_ns
        total = sum(classes.values())
        return Kernels(
            total_ns=total,
            rows=found,
            copies=(),
            classes_ns=classes,
            precisions_ns=by_precision,
            product_ns=total,
            tensor_core_ns=0,
            tensor_core_unknown_ns=0,
        )

    def measured(self, **parts: Any) -> Measured:
        return Measured(source="runs/train", **parts)


@pytest.fixture
def build() -> Build:
    return Build()
