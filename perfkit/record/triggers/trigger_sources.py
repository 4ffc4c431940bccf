"""What the other triggers watch: touched files, signals, and what torch.compile compiles again."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

from perfkit import _clock
from perfkit._location import Location
from perfkit.record.watchers.compilations import CompileCounter, compiled_graphs

#: How often files are checked: a person waits longer for the window itself.
_FILES_NS = 1_000_000_000


class TouchedFiles:
    """Checks about once per second whether one of ``paths`` was touched."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._seen = {path: _touched(path) for path in paths}
        self._next_ns = 0

    def poll(self) -> bool:
        """Whether one was touched since the last check; False too where it is too early for another check."""
        now = _clock.now_ns()
        if now < self._next_ns:
            return False
        self._next_ns = now + _FILES_NS
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
    """Notes that a signal came, and calls the handler that was there before."""

    def __init__(self, name: str, wake: Callable[[], None]) -> None:
        self._number = getattr(signal, name)
        self._wake = wake
        self._before: Any = None
        self._attached = False
        self.received = False

    def attach(self) -> None:
        """Install the handler; in the main thread only."""
        self._before = signal.signal(self._number, self._on_signal)
        # A request for a window must not make a system call of the training's C code fail.
        signal.siginterrupt(self._number, False)
        self._attached = True

    def detach(self) -> None:
        """Restore the handler that was there before, unless another one was installed over ours since."""
        self._attached = False
        in_main_thread = threading.current_thread() is threading.main_thread()
        if signal.getsignal(self._number) == self._on_signal and in_main_thread:
            signal.signal(self._number, self._before)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._attached:
            self.received = True
            self._wake()
        if callable(self._before):
            self._before(number, frame)


class Recompiles:
    """Finds functions that torch.compile compiled again."""

    def __init__(self) -> None:
        self._graphs: int | None = 0
        self._known: dict[tuple[str, Location | None], int] = {}

    def poll(self, counter: CompileCounter) -> str | None:
        """The first function that was compiled again since the last check, in words."""
        graphs = compiled_graphs()
        if graphs == self._graphs:
            return None
        self._graphs, before = graphs, self._known
        rows = counter.compilations
        self._known = {(row.compiled, row.called_from): row.recompiles for row in rows}
        again = [row for row in rows if row.recompiles > before.get((row.compiled, row.called_from), 0)]
        if not again:
            return None
        reason = f": {again[0].reason}" if again[0].reason else ""
        return f"{again[0].compiled} was compiled again{reason}"[:300]
