"""One rank's records while its run goes on: rows kept for moments, everything else rewritten now and then.

Whatever fails here is told once, kept for the report, and never raised into training.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from perfkit import _clock, _env
from perfkit._stderr import print_message
from perfkit.run.rank_writer import RankWriter
from perfkit.run.records import ClockPair, Lines, Phases, RangeRow, Rank, Step, Syncs

#: Rows wait in memory until they are so many or this old; with the steps that the clock has not summed up yet, which
#: are 50 at most or those of about 20 ms, a kill loses no more than 64 (DESIGN section 3), or 20 ms.
_FLUSH_ROWS = 14
FLUSH_NS = 1_000_000_000
#: Rows that are held for their device times; a device is seldom further behind than this (DESIGN section 3).
_HELD = 64
#: ranges, syncs, lines and rank.json are rewritten this often (DESIGN section 3).
_REWRITE_NS = 30_000_000_000


class Parts(msgspec.Struct, kw_only=True):
    """What is rewritten beside the rows: facts for rank.json, and the files of parts that are there."""

    facts: dict[str, Any]
    settings: dict[str, str] = {}
    lines: Lines | None = None
    ranges: Sequence[RangeRow] = ()
    syncs: Syncs | None = None


class RankRecording:
    """Writes one rank's folder during a run. ``parts()`` is asked for what to rewrite, when it is time to."""

    def __init__(self, folder: Path, launch: str, parts: Callable[[], Parts]) -> None:
        self._writer = RankWriter(folder, _env.rank())
        self._parts = parts
        self._rows: list[Step] = []
        self._held: deque[Step] = deque()
        self._flushed = self._rewritten = _clock.now_ns()
        self._told: set[str] = set()
        self.errors: list[str] = []
        self.notes: list[str] = []
        self._pairs = [ClockPair(*_clock.clock_pair())]
        self.rank = Rank(
            rank=_env.rank(),
            launch_id=launch,
            host=socket.gethostname(),
            pid=os.getpid(),
            start_ns=_clock.now_ns(),
            versions=_env.versions(),
            devices=tuple(_env.devices()),
            git_commit=_env.git_commit(os.getcwd()),
        )

    def window_file(self, index: int) -> Path:
        """Where window ``index``'s trace goes."""
        return self._writer.window_file(index)

    def workers_folder(self) -> Path:
        """Where the loader's workers leave what they sampled, until the run ends."""
        return self._writer.folder / "workers"

    def memory_file(self, index: int) -> Path:
        """Where window ``index``'s snapshot of device memory goes."""
        return self._writer.memory_file(index)

    def add(self, rows: Sequence[Step], *, await_device: bool = False) -> None:
        """Keep rows until `write_due`; those that ``await_device`` times are held until `settle` brings them."""
        (self._held if await_device else self._rows).extend(rows)

    def write_due(self) -> int | None:
        """Write what has waited long enough.

        Of rows that are held for their device times no more than so many are: older ones are written without. Then
        the first step that is still awaited is returned, else None.
        """
        given_up = None
        while len(self._held) > _HELD:
            self._rows.append(self._held.popleft())
            given_up = self._held[0].step
        now = _clock.now_ns()
        if len(self._rows) >= _FLUSH_ROWS or now - self._flushed > FLUSH_NS:
            self.flush()
        if now - self._rewritten > _REWRITE_NS:
            self.rewrite()
        return given_up

    def settle(self, step: int, phases: Phases | None) -> None:
        """The device times of a held row, None where there are none after all."""
        while self._held and self._held[0].step <= step:
            row = self._held.popleft()
            self._rows.append(msgspec.structs.replace(row, device_phases_ns=phases) if row.step == step else row)

    def pair_clocks(self) -> None:
        """Note how the run's clock stands to unix time now: done at the start and at each window."""
        self._pairs.append(ClockPair(*_clock.clock_pair()))

    def flush(self) -> None:
        """Write the rows that wait."""
        self._flushed = _clock.now_ns()
        rows, self._rows = self._rows, []
        try:
            self._writer.append_steps(rows)
        except OSError as error:
            self.trouble("writing steps.jsonl", error)

    def rewrite(self, ending: str | None = None) -> None:
        """Write rank.json, lines.json, ranges.npz and syncs.json anew; ``ending`` is how the run ended."""
        self._rewritten = _clock.now_ns()
        parts = self._parts()
        self.rank = msgspec.structs.replace(
            self.rank,
            **parts.facts,
            settings=_env.settings() | parts.settings,
            errors=tuple(self.errors),
            notes=tuple(self.notes),
            clock_pairs=tuple(self._pairs),
            end_ns=_clock.now_ns() if ending is not None else None,
            ending=ending,
        )
        self._writer.write(self.rank)
        for record in (parts.lines, parts.syncs):
            if record is not None:
                self._writer.write(record)
        self._writer.write_ranges(parts.ranges)

    def finish(self, ending: str) -> None:
        """Write everything a last time."""
        try:
            self._rows.extend(self._held)
            self._held.clear()
            self.flush()
            self.rewrite(ending)
        finally:
            self._writer.close()

    # -- telling

    def note(self, text: str) -> None:
        """Keep a sentence for the report."""
        if text not in self.notes:
            self.notes.append(text)

    def trouble(self, what: str, error: BaseException | str) -> None:
        """Tell once, and keep for the report, that a part of perfkit failed."""
        if what in self._told:
            return
        self._told.add(what)
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        self.errors.append(f"{what}: {text}")
        print_message(f"{what}: {text} (training goes on)")

    def guarded(self, what: str, do: Callable[[], Any]) -> None:
        """Do a part of perfkit's work at the border to training: what fails is told, and not raised."""
        try:
            do()
        except Exception as error:  # noqa: BLE001 - nothing of perfkit's may end training
            self.trouble(what, error)
