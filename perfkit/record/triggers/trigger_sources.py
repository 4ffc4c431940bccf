"""Where triggers hear from: the times of steps, touched files, signals, and what torch.compile compiles again."""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from perfkit import _clock
from perfkit._location import Location
from perfkit.record.clock.step_sums import ClosedStep
from perfkit.record.watchers.compilations import CompileCounter, compiled_graphs

#: A slow step takes so much longer than the median too: a time slice of the operating system is some milliseconds,
#: which are many times a short step.
_AT_LEAST_NS = 10_000_000
#: The median is of the last so many steps: enough that one odd step is not the half of them, and few enough to follow
#: a training whose steps get longer by and by. It is not asked before there are so many as in a short look.
_RECENT, _ENOUGH = 64, 16
#: The phases of a step that are long on purpose, now and then.
_PLANNED = ("validation", "checkpoint")
#: How often the folder is looked at: a person waits longer for the window itself.
_LOOK_NS = 1_000_000_000


class SlowSteps:
    """Tells a training step that takes ``times`` the median of those before it."""

    def __init__(self, times: float) -> None:
        self._times = times
        self._recent: deque[int] = deque(maxlen=_RECENT)

    def judge(self, closed: Sequence[ClosedStep]) -> str | None:
        """The slowest of these steps, if it is slow, in words; all of them count as recent afterwards."""
        walls = [step.wall_ns for step in closed if step.mode == "train"]
        found = None
        if walls and len(self._recent) >= _ENOUGH:
            median = sorted(self._recent)[len(self._recent) // 2]
            bound = max(self._times * median, median + _AT_LEAST_NS)
            # The longest first decides whether to look at single steps at all: there are some hundreds.
            if max(walls) > bound:
                found = self._slowest(closed, bound, median)
        self._recent.extend(walls[-_RECENT:])
        return found

    def _slowest(self, closed: Sequence[ClosedStep], bound: float, median: int) -> str | None:
        times = {
            step.step: step.wall_ns - sum(getattr(step.phases_ns, phase) or 0 for phase in _PLANNED)
            for step in closed
            if step.mode == "train"
        }
        number = max(times, key=lambda step: times[step])
        if times[number] <= bound:
            return None
        return f"slow step {number} ({times[number] / max(1, median):.1f} x the median)"


class TouchedFiles:
    """Tells that one of ``paths`` was touched since it was looked at last, about once a second."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._seen = {path: _touched(path) for path in paths}
        self._next_ns = 0

    def look(self) -> bool:
        """Whether one was touched; False too where it is too early to look again."""
        now = _clock.now_ns()
        if now < self._next_ns:
            return False
        self._next_ns = now + _LOOK_NS
        before, self._seen = self._seen, {path: _touched(path) for path in self._seen}
        return any(seen is not None and seen != before[path] for path, seen in self._seen.items())


def _touched(path: Path) -> tuple[int, int] | None:
    try:
        stat = os.stat(path)
    except OSError:
        return None
    # A file that was replaced by one of the same age is another one.
    return stat.st_mtime_ns, stat.st_ino


class SignalListener:
    """Notes that a signal came, and passes it on to the handler that was there before."""

    def __init__(self, name: str, wake: Callable[[], None]) -> None:
        self._number = getattr(signal, name)
        self._wake = wake
        self._before: Any = None
        self._listens = False
        self.came = False

    def attach(self) -> None:
        """Begin to listen; in the main thread only."""
        self._before = signal.signal(self._number, self._on_signal)
        # A system call of the training's in C must not fail because somebody wants a window.
        signal.siginterrupt(self._number, False)
        self._listens = True

    def detach(self) -> None:
        """Put the handler back that was there before, unless somebody has put one over ours meanwhile."""
        self._listens = False
        if signal.getsignal(self._number) == self._on_signal and _in_main_thread():
            signal.signal(self._number, self._before)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._listens:
            self.came = True
            self._wake()
        if callable(self._before):
            self._before(number, frame)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


class Recompiles:
    """Tells that torch.compile compiled a function again, in words."""

    def __init__(self) -> None:
        self._graphs: int | None = 0
        self._known: dict[tuple[str, Location | None], int] = {}

    def look(self, counter: CompileCounter | None) -> str | None:
        """What was compiled again since the last look."""
        graphs = compiled_graphs()
        if graphs == self._graphs or counter is None:
            return None
        self._graphs, before = graphs, self._known
        rows = counter.compilations
        self._known = {(row.compiled, row.called_from): row.recompiles for row in rows}
        again = [row for row in rows if row.recompiles > before.get((row.compiled, row.called_from), 0)]
        if not again:
            return None
        reason = f": {again[0].reason}" if again[0].reason else ""
        return f"{again[0].compiled} was compiled again{reason}"[:300]
