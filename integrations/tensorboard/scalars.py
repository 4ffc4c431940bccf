"""``log_scalars``: each step's phases, throughput, memory, syncs and MFU beside the training curves.

    with log_scalars(perfkit.profile("runs/mnist"), SummaryWriter("tb")) as prof:
        for batch in prof.steps(loader): ...

Reads what the profile writes into its run folder anyway, from a thread of its own: the loop does nothing for it, and
no tensor is ever looked at.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

import perfkit
from perfkit import PerfkitWarning
from perfkit.integrations.tensorboard.handler import place_of_process
from perfkit.integrations.tensorboard.writers import to_markdown, writer_for
from perfkit.measures.steps.utilization import measure_utilization
from perfkit.run.records import PHASES, Rank, Step, StepFlops

#: How often the run folder is looked at.
_EVERY_S = 2.0
#: Points per look, the mean of neighbours where there are more steps. A point is about ten calls of 20 us in a
#: thread that shares the interpreter with training: 20 in 2 s are 0.2 % of it.
_POINTS = 20
#: Rows are 300 bytes: what is read at once, however far the file has come.
_BLOCK = 4 * 2**20
_MIB = 2**20


class log_scalars:
    """Record with ``profile``, and write its steps to ``writer`` while it does.

    Entered, it starts the profile and gives it; left, it stops it, writes the last steps and the verdict as text. The
    names are ``perfkit/step_ms``, ``perfkit/<phase>_ms``, ``perfkit/samples_per_s``, ``perfkit/tokens_per_s``,
    ``perfkit/memory_mib``, ``perfkit/host_memory_mib``, ``perfkit/syncs`` and ``perfkit/mfu``, each where it is
    measured; steps inside windows are left out, because recording slows them. Where steps are short, a point is the
    mean of some neighbours. A writer that fails is told once, and training goes on.

    Args:
        profile: As `perfkit.profile` makes it.
        writer: A SummaryWriter of torch or tensorboardX, or a Lightning logger.

    Raises:
        UsageError: ``writer`` is neither.
    """

    def __init__(self, profile: perfkit.profile, writer: Any) -> None:
        self._profile = profile
        self._writer = writer_for(writer)
        self._rows: _Rows | None = None
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
        """Start the profile, unless it records already, and begin to write."""
        self._profile.start()
        if self._profile.folder is not None and self._thread is None:
            # Started again, a profile goes on in its folder: rows that were written are not written twice.
            self._rows = self._rows or _Rows(self._profile.folder / f"rank-{place_of_process()[0]}")
            self._stopping.clear()
            self._thread = threading.Thread(target=self._write, name="perfkit scalars", daemon=True)
            self._thread.start()
        return self._profile

    def stop(self, error: BaseException | None = None) -> None:
        """Stop the profile, and write what is left.

        Args:
            error: What ended the loop, where it ended by an exception.
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
        for rows in self._rows.new():
            flops = self._rows.flops()
            for part in _parts([row for row in rows if row.kind == "timed"]):
                self._writer.scalars(_values(part, flops), part[-1].step)

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
        except Exception as error:  # noqa: BLE001 - a writer may raise anything; training goes on
            self._failed = True
            message = f"perfkit: scalars are no longer written ({type(error).__name__}: {error}); training goes on"
            warnings.warn(message, PerfkitWarning, stacklevel=3)


class _Rows:
    """The rows of a rank's steps.jsonl, each once, while they are written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._decoder = msgspec.json.Decoder(Step)
        self._inode = -1
        self._at = 0
        self._flops: StepFlops | None = None
        self.last_step = -1

    def new(self) -> Iterator[list[Step]]:
        """The rows that have come since the last time, in blocks."""
        try:
            file = (self._folder / "steps.jsonl").open("rb")
        except FileNotFoundError:
            return
        with file:
            inode = os.fstat(file.fileno()).st_ino
            if inode != self._inode:
                # Another file under the name: the older half of the rows was merged.
                self._inode, self._at = inode, 0
            file.seek(self._at)
            while whole := (block := file.read(_BLOCK)).rfind(b"\n") + 1:  # what follows is being written
                self._at += whole
                file.seek(self._at)
                rows = [self._decoder.decode(line) for line in block[:whole].splitlines()]
                rows = [row for row in rows if row.step > self.last_step]
                if rows:
                    self.last_step = rows[-1].step
                    yield rows

    def flops(self) -> StepFlops | None:
        """The operations of a step, once the profile has counted them."""
        if self._flops is None:
            try:
                self._flops = msgspec.json.decode((self._folder / "rank.json").read_bytes(), type=Rank).flops
            except (OSError, msgspec.DecodeError):
                return None
        return self._flops


def _parts(rows: Sequence[Step]) -> list[Sequence[Step]]:
    size = max(1, -(-len(rows) // _POINTS))
    return [rows[at : at + size] for at in range(0, len(rows), size)]


def _values(rows: Sequence[Step], flops: StepFlops | None) -> dict[str, float]:
    """Means per step over neighbouring rows; memory is the highest of them."""
    steps = sum(row.steps for row in rows)
    wall_ns = sum(row.wall_ns for row in rows)
    values: dict[str, float | None] = {"step_ms": wall_ns / steps / 1e6}
    for phase in PHASES:
        told = [ns for row in rows if (ns := getattr(row.phases_ns, phase)) is not None]
        values[f"{phase}_ms"] = sum(told) / steps / 1e6 if told else None
    for name in ("samples", "tokens"):
        counts = [getattr(row, name) for row in rows]
        values[f"{name}_per_s"] = sum(counts) * 1e9 / wall_ns if None not in counts and wall_ns else None
    for name, field in (("memory_mib", "memory_bytes"), ("host_memory_mib", "rss_bytes")):
        levels = [level for row in rows if (level := getattr(row, field)) is not None]
        values[name] = max(levels) / _MIB if levels else None
    syncs = [row.syncs for row in rows]
    values["syncs"] = sum(count for count in syncs if count is not None) / steps if None not in syncs else None
    used = measure_utilization(flops, wall_ns // steps)
    values["mfu"] = used.mfu if used is not None else None
    return {f"perfkit/{name}": float(value) for name, value in values.items() if value is not None}
