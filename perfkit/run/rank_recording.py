"""One rank's records during its run: rows are buffered for a second, everything else is rewritten every 30 s.

An error is reported once, kept for the diagnosis, and never raised into training.
"""

from __future__ import annotations

import os
import socket
import sys
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from perfkit import _clock, _env
from perfkit._raised_signals import leave_to_program
from perfkit._stderr import print_message
from perfkit.run.file_names import memory_name, peak_name, trace_name
from perfkit.run.rank_writer import RankWriter, write_record
from perfkit.run.records import ClockPair, Lines, Phases, RangeRow, Rank, Step, Syncs

#: Maximum number and age of rows in memory. With the steps that the clock has not added up yet, at most 50 or those of
#: about 20 ms, a kill loses no more than 64 steps, or 20 ms.
_FLUSH_ROWS = 14
FLUSH_NS = 1_000_000_000
#: Maximum number of rows that wait for their device times; a device is seldom further behind.
_MAX_WAITING = 64
#: Maximum number of clock pairs: then every second one is dropped, and only every second one is kept from there on.
_MAX_PAIRS = 64
#: Time between two rewrites of ranges.npz, syncs.json, lines.json and rank.json.
_REWRITE_NS = 30_000_000_000


def _code_folders() -> list[str]:
    """Where the program's files are: the folder of its script, where there is one, and the current folder."""
    script = sys.argv[0] if sys.argv else ""
    current = str(_env.current_folder())
    return [os.path.dirname(os.path.abspath(script)), current] if os.path.isfile(script) else [current]


class Parts(msgspec.Struct, kw_only=True):
    """What is rewritten now and then: fields of rank.json, and the contents of the other files, if any."""

    facts: dict[str, Any]
    settings: dict[str, str] = {}
    lines: Lines | None = None
    ranges: Sequence[RangeRow] = ()
    syncs: Syncs | None = None


class LateLoss(Protocol):
    """A loss that is not on the host yet when it is logged."""

    def read(self, *, wait: bool) -> float | None:
        """The loss; None where it is not there yet, unless ``wait``."""


class RankRecording:
    """Writes one rank's folder during a run. ``parts()`` returns what to rewrite, when that is due."""

    def __init__(self, folder: Path, launch: str, parts: Callable[[], Parts]) -> None:
        self._writer = RankWriter(folder, _env.rank())
        self.folder = self._writer.folder
        self._parts = parts
        self._rows: list[Step] = []
        self._waiting: deque[Step] = deque()
        #: Losses by step that are read when the step's row is written: by then the device has done the step.
        self.late_losses: dict[int, LateLoss] = {}
        self._flushed = self._rewritten = _clock.now_ns()
        self._reported: set[str] = set()
        self.errors: list[str] = []
        self.notes: list[str] = []
        self._last_pair = ClockPair(*_clock.clock_pair())
        self._pairs = [self._last_pair]
        #: How often clocks were paired, and which of these pairs are kept.
        self._paired, self._pairs_apart = 0, 1
        self.rank = Rank(
            rank=_env.rank(),
            launch_id=launch,
            host=socket.gethostname(),
            pid=os.getpid(),
            start_ns=_clock.now_ns(),
            versions=_env.versions(),
            git_commit=_env.git_commit(*_code_folders()),
        )

    def window_file(self, index: int) -> Path:
        """Path of window ``index``'s trace."""
        return self.folder / trace_name(index)

    def memory_file(self, index: int) -> Path:
        """Path of window ``index``'s snapshot of device memory."""
        return self.folder / memory_name(index)

    def peak_file(self, number: int = 0) -> Path:
        """Path of the trace of the steps that are recorded for memory."""
        return self.folder / peak_name(number)

    def add(self, rows: Sequence[Step], *, await_device: bool = False) -> None:
        """Keep rows until `write_due`; with ``await_device`` until `settle` adds their device times."""
        (self._waiting if await_device else self._rows).extend(rows)

    def write_due(self) -> int | None:
        """Write the rows that are due.

        Only a bounded number of rows waits for device times; older ones are written without them. Returns the first
        step that still waits, if any row was written without, else None.
        """
        given_up = None
        while len(self._waiting) > _MAX_WAITING:
            self._rows.append(self._waiting.popleft())
            given_up = self._waiting[0].step
        now = _clock.now_ns()
        if len(self._rows) >= _FLUSH_ROWS or now - self._flushed > FLUSH_NS:
            self.flush()
        if now - self._rewritten > _REWRITE_NS:
            self.rewrite()
        return given_up

    def settle(self, step: int, phases: Phases | None) -> None:
        """Add the device times of a waiting row; None: it has none after all."""
        while self._waiting and self._waiting[0].step <= step:
            row = self._waiting.popleft()
            self._rows.append(msgspec.structs.replace(row, device_phases_ns=phases) if row.step == step else row)

    def pair_clocks(self) -> None:
        """Record the run's clock and unix time at this instant: at the start and after each window."""
        self._last_pair = ClockPair(*_clock.clock_pair())
        self._paired += 1
        if self._paired % self._pairs_apart == 0:
            self._pairs.append(self._last_pair)
        if len(self._pairs) > _MAX_PAIRS:
            del self._pairs[1::2]
            self._pairs_apart *= 2

    def flush(self, *, last: bool = False) -> None:
        """Write the buffered rows; the last ones wait for their losses."""
        self._flushed = _clock.now_ns()
        rows, self._rows = self._rows, []
        if self.late_losses and rows:
            rows = [self._with_loss(row, wait=last) for row in rows]
            self.late_losses = {step: loss for step, loss in self.late_losses.items() if step > rows[-1].step}
        try:
            self._writer.append_steps(rows)
        except OSError as error:
            self.trouble("writing steps.jsonl", error)

    def _with_loss(self, row: Step, *, wait: bool) -> Step:
        late = self.late_losses.get(row.step)
        if late is None:
            return row
        try:
            return msgspec.structs.replace(row, loss=late.read(wait=wait))
        except Exception as error:  # noqa: BLE001 - an error of the device; its other rows are written
            self.trouble("reading a loss", error)
            return row

    def rewrite(self, ending: str | None = None) -> None:
        """Rewrite rank.json, lines.json, ranges.npz and syncs.json; ``ending`` is how the run ended."""
        self._rewritten = _clock.now_ns()
        parts = self._parts()
        self.rank = msgspec.structs.replace(
            self.rank,
            **parts.facts,
            settings=_env.settings() | parts.settings,
            errors=tuple(self.errors),
            notes=tuple(self.notes),
            clock_pairs=tuple(dict.fromkeys((*self._pairs, self._last_pair))),
            end_ns=_clock.now_ns() if ending is not None else None,
            ending=ending,
        )
        self._writer.write(self.rank)
        for record in (parts.lines, parts.syncs):
            if record is not None:
                self._writer.write(record)
        self._writer.write_ranges(parts.ranges)

    def amend(self, **fields: Any) -> None:
        """Write rank.json again with other values of these fields, after `finish`."""
        self.rank = msgspec.structs.replace(self.rank, **fields)
        write_record(self.folder, self.rank)

    def finish(self, ending: str) -> None:
        """Write everything for the last time."""
        try:
            self._rows.extend(self._waiting)
            self._waiting.clear()
            self.flush(last=True)
            self.rewrite(ending)
        finally:
            self._writer.close()

    # -- reporting

    def note(self, text: str) -> None:
        """Keep a sentence for the diagnosis."""
        if text not in self.notes:
            self.notes.append(text)

    def trouble(self, what: str, error: BaseException | str) -> None:
        """Report once, and keep for the diagnosis, that a part of perfkit failed.

        Raises again what a handler of the program's signals has raised: the program waits for it.
        """
        if isinstance(error, BaseException):
            leave_to_program(error)
        if what in self._reported:
            return
        self._reported.add(what)
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        self.errors.append(f"{what}: {text}")
        print_message(f"{what}: {text} (training goes on)")

    def guarded(self, what: str, do: Callable[[], Any]) -> None:
        """Do a part of perfkit's work during training: an error is reported, and not raised."""
        try:
            do()
        except Exception as error:  # noqa: BLE001 - nothing of perfkit's may end training
            self.trouble(what, error)
