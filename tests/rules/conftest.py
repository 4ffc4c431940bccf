"""Results of measures built by hand: the smallest ones that show a problem, and healthy ones."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import pytest

from perfkit.findings import Finding
from perfkit.ledger.ledger import ClaimedLedger, Ledger
from perfkit.ledger.rows import LedgerRow
from perfkit.measures.results.device import DeviceTime, IdleTime
from perfkit.measures.results.host import HostKind, HostLine, HostWork, Ops, OpTime
from perfkit.measures.results.kernel_profiles import KernelProfile, KernelProfiles
from perfkit.measures.results.kernels import Kernels, KernelTime
from perfkit.measures.results.measurements import Measurements
from perfkit.measures.results.patterns import Patterns
from perfkit.measures.results.steps import MeanStep, StepBreakdown, TracedStep, TypicalStep
from perfkit.rules._engine import Rule
from perfkit.run.records import Lines, Loader, Phases, Rank, TracedLine

MS = 1_000_000

# For the builder of traces.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "planted_traces"))

_Step = TypeVar("_Step", bound=StepBreakdown)


class Build:
    """Builds results of measures from times in ms."""

    def step(self, wall: float, source: str = "steps.jsonl, 40 steps", **phases: float) -> TypicalStep:
        return self._step(TypicalStep, wall, source, phases)

    def mean_step(self, wall: float, source: str = "steps.jsonl, 40 steps", **phases: float) -> MeanStep:
        return self._step(MeanStep, wall, source, phases)

    def traced_step(self, wall: float, source: str = "trace, 40 steps", **phases: float) -> TracedStep:
        return self._step(TracedStep, wall, source, phases)

    def _step(self, kind: type[_Step], wall: float, source: str, phases: dict[str, float]) -> _Step:
        wall_ns = round(wall * MS)
        return kind(
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
            idle=tuple(IdleTime(cause=cause, ns=ns, gaps=1000) for cause, ns in causes.items()),
            late_gaps=parts.pop("late_gaps", 1000),
            unlinked_share=0.0,
            graph_launches=0,
            steps=10,
            **parts,
        )

    def rank(
        self, *, workers: int = 0, cpus: int = 8, threads: int = 1, settings: dict[str, str] | None = None, **facts: Any
    ) -> Rank:
        """The record of a rank with one loader; ``settings`` are further ones, ``facts`` its other fields."""
        loader = Loader(
            dataset="Reviews",
            batch_size=32,
            num_workers=workers,
            pin_memory=False,
            prefetch_factor=None,
            persistent_workers=False,
        )
        usual = {"cpu_count": str(cpus), "torch.num_threads": str(threads)}
        fields: dict[str, Any] = {"settings": usual | (settings or {}), "loaders": (loader,), "steps": 40, **facts}
        return Rank(rank=0, launch_id="x", host="h", pid=1, start_ns=0, **fields)

    def ops(self, *rows: tuple[str, int, float, float], steps: int = 2) -> Ops:
        """Ops from (name, count, total ms, own ms)."""
        times = tuple(
            OpTime(name=name, count=count, total_ns=round(total * MS), self_ns=round(own * MS))
            for name, count, total, own in rows
        )
        return Ops(steps=steps, count=1, wall_ns=1, rows=times, floor_ns=None)

    def work(self, kind: HostKind, ms: float, samples: int = 100, total: int = 1000, **fields: Any) -> HostWork:
        """Host work of one line, in ``samples`` of ``total`` samples."""
        line = HostLine(
            **{"file": "train.py", "line": 12, "function": "prepare", "phase": "forward", **fields},
            samples=samples,
            host_ns=round(ms * MS),
        )
        return HostWork(kind=kind, samples=samples, total_samples=total, host_ns=line.host_ns, lines=(line,))

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

    def ledger(
        self, *rows: tuple[Any, ...], unquantified: tuple[str, ...] = (), unknown: str | None = None
    ) -> ClaimedLedger:
        """A ledger without claims from (owner, ms, limit in ms or None, bound, location)."""
        parts = tuple(
            LedgerRow(
                owner=owner,
                name="op",
                ns=round(time * MS),
                limit_ns=None if limit is None else round(limit * MS),
                bound=bound,
                at=place[0] if place else None,
            )
            for owner, time, limit, bound, *place in rows
        )
        limits = "measured on a CPU" if unknown is None else None
        whole = sum(row.ns for row in parts)
        step = Ledger(wall_ns=whole, per="step", basis="training thread", rows=parts, limits=limits, unknown=unknown)
        return ClaimedLedger(ledger=step, unquantified=unquantified)

    def kernel_profiles(self, *kernels: dict[str, Any]) -> KernelProfiles:
        """A report with one launch of each kernel, near the peak of compute like a good product but for what is given.

        Such a product has many registers and few warps on purpose.
        """
        healthy: dict[str, Any] = {
            "name": "kernel",
            "launches": 1,
            "share": 1.0,
            "total_ns": MS,
            "compute": 0.82,
            "memory": 0.55,
            "dram": 0.30,
            "l1": 0.55,
            "l2": 0.40,
            "registers": 240,
            "occupancy": 0.12,
            "theoretical_occupancy": 0.125,
            "limiters": ("registers",),
            "waves": 8.0,
            "spills": 32_768.0,
            "spill_share": 0.01,
            "grid": (512, 1, 1),
            "block": (256, 1, 1),
        }
        rows = tuple(KernelProfile(**healthy | fields) for fields in kernels)
        return KernelProfiles(launches=len(rows), rows=rows, total_ns=sum(row.total_ns or 0 for row in rows))

    def measurements(self, *results: Any) -> Measurements:
        """Results of measures, each a value, a tuple of values, or None."""
        return Measurements("runs/train", *results)

    def findings(self, rule: ModuleType, *results: Any) -> list[Finding]:
        """What a rule finds in these results, asked as the engine asks it."""
        return Rule.of(rule).run(self.measurements(*results))


@pytest.fixture
def build() -> Build:
    return Build()
