"""``log_scalars``: each step's phases, throughput, memory, syncs and MFU next to the training curves.

    with log_scalars(perfkit.profile("runs/mnist"), SummaryWriter("tb")) as prof:
        for batch in prof.steps(loader): ...

A thread reads what the profile writes into its run folder anyway: the loop does nothing for it, and no tensor is read.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any

import perfkit
from perfkit import PerfkitWarning, _env
from perfkit.integrations.tensorboard.writers import named, to_markdown, writer_for
from perfkit.measures.steps.utilization import measure_utilization
from perfkit.run.new_rows import NewRows
from perfkit.run.reading import RankFolder
from perfkit.run.records import PHASES, Step, StepFlops

#: How often new rows are read.
_EVERY_S = 2.0
#: Maximum number of points per read; of more steps, neighbours are averaged. A point is about ten calls of 20 us in a
#: thread that shares the interpreter with training: 20 in 2 s take 0.2 % of it.
_MAX_POINTS = 20
_MIB = 2**20


class log_scalars:
    """Record with ``profile``, and write its steps to ``writer`` while it does.

    As a context manager, it starts the profile and returns it; at the end it stops the profile, writes the last steps,
    and the verdict as text. The names are ``perfkit/step_ms``, ``perfkit/<phase>_ms``, ``perfkit/samples_per_s``,
    ``perfkit/tokens_per_s``, ``perfkit/memory_mib``, ``perfkit/host_memory_mib``, ``perfkit/syncs`` and
    ``perfkit/mfu``, each if it is measured. Steps inside windows are skipped, because recording slows them. If steps
    are short, a point is the mean of some neighbours. An error of the writer is reported once, and training continues.

    Args:
        profile: A `perfkit.profile`.
        writer: A SummaryWriter of torch or tensorboardX, or a Lightning logger.

    Raises:
        UsageError: ``writer`` is neither.
    """

    def __init__(self, profile: perfkit.profile, writer: Any) -> None:
        self._profile = profile
        self._writer = writer_for(writer)
        self._rows: NewRows | None = None
        #: The operations of a step; None until the profile has counted them.
        self._flops: StepFlops | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._failed = False

    def __enter__(self) -> perfkit.profile:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop(error)

    def start(self) -> perfkit.profile:
        """Start the profile, unless it records already, and start to write."""
        self._profile.start()
        if self._profile.folder is not None and self._thread is None:
            # A profile that is started again continues its folder: no row is written twice.
            self._rows = self._rows or NewRows(self._profile.folder / f"rank-{_env.rank()}" / "steps.jsonl")
            self._stopping.clear()
            self._thread = threading.Thread(target=self._write, name="perfkit scalars", daemon=True)
            self._thread.start()
        return self._profile

    def stop(self, error: BaseException | None = None) -> None:
        """Stop the profile, and write the rest.

        Args:
            error: The exception that ended the loop, if one did.
        """
        self._profile.stop(error)
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._stopping.set()
        thread.join()
        self._guarded(self._write_end)

    def _write(self) -> None:
        while not self._stopping.wait(_EVERY_S) and not self._failed:
            self._guarded(self._write_new)

    def _write_new(self) -> None:
        assert self._rows is not None
        if not self._rows.path.exists():
            return  # no step has ended yet
        for rows in self._rows.read():
            if self._flops is None and (rank := RankFolder(self._rows.path.parent, 0).rank) is not None:
                self._flops = rank.flops
            for part in _parts([row for row in rows if row.kind == "timed"]):
                self._writer.scalars(_values(part, self._flops), part[-1].step)

    def _write_end(self) -> None:
        assert self._rows is not None
        self._write_new()
        if self._profile.diagnosis is not None:
            self._writer.text("perfkit/verdict", to_markdown(self._profile.diagnosis), max(0, self._rows.last_step))
        self._writer.flush()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            if not self._failed:
                work()
        except Exception as error:  # noqa: BLE001 - a writer may raise anything
            self._failed = True
            message = f"perfkit: scalars are no longer written ({type(error).__name__}: {error}); training continues"
            warnings.warn(message, PerfkitWarning, stacklevel=3)


def points_of(rank: RankFolder, most: int) -> Iterator[tuple[int, int, dict[str, float]]]:
    """The scalars of a recorded rank as (last step, its start on the run's clock in ns, values), at most ``most``."""
    flops = rank.rank.flops if rank.rank is not None else None
    for part in _parts([row for row in rank.steps if row.kind == "timed"], most):
        yield part[-1].step, part[-1].start_ns, _values(part, flops)


def _parts(rows: Sequence[Step], most: int = _MAX_POINTS) -> list[Sequence[Step]]:
    size = max(1, -(-len(rows) // most))
    return [rows[at : at + size] for at in range(0, len(rows), size)]


def _values(rows: Sequence[Step], flops: StepFlops | None) -> dict[str, float]:
    """Means per step over neighbouring rows; of memory, the maximum."""
    steps = sum(row.steps for row in rows)
    wall_ns = sum(row.wall_ns for row in rows)
    values: dict[str, float | None] = {"step_ms": wall_ns / steps / 1e6}
    for phase in PHASES:
        shown = [ns for row in rows if (ns := getattr(row.phases_ns, phase)) is not None]
        values[f"{phase}_ms"] = sum(shown) / steps / 1e6 if shown else None
    for name in ("samples", "tokens"):
        count = _total([getattr(row, name) for row in rows])
        values[f"{name}_per_s"] = count * 1e9 / wall_ns if count is not None and wall_ns else None
    for name, field in (("memory_mib", "memory_bytes"), ("host_memory_mib", "rss_bytes")):
        levels = [level for row in rows if (level := getattr(row, field)) is not None]
        values[name] = max(levels) / _MIB if levels else None
    syncs = _total([row.syncs for row in rows])
    values["syncs"] = syncs / steps if syncs is not None else None
    used = measure_utilization(flops, wall_ns // steps)
    values["mfu"] = used.mfu if used is not None else None
    return named(values)


def _total(counts: Sequence[int | None]) -> int | None:
    """The sum; None if a row was not counted."""
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None
