"""perfkit's own processor time that comes once in a run, by what it was for. The clock counts what each step adds."""

from __future__ import annotations

import time
from collections import Counter
from typing import Literal, NamedTuple

from perfkit import _background
from perfkit.record.windows import trace_files

#: Loading perfkit and attaching it; opening and closing windows; searches of all objects; what is done when the program
#: is over.
Part = Literal["start", "windows", "checks", "end"]


class OwnTime(NamedTuple):
    """perfkit's processor time so far that is in no step, in ns: the training thread's, and that of the process."""

    thread_ns: int
    process_ns: int


class OwnCost:
    """Adds up processor time of this process, all its threads, and of the helper processes that it started."""

    def __init__(self) -> None:
        self._ns: Counter[str] = Counter()
        #: What helpers, and threads that write, of earlier runs of this process had used.
        self._helpers_before_ns = _background.processor_ns()
        self._written_before_ns = trace_files.processor_ns()
        self._pauses_ns = 0
        #: When the running pause began, by the training thread's own clock; None: none runs.
        self._pause_began: int | None = None

    def add(self, part: Part, ns: int) -> None:
        """Count processor time of this process.

        Below zero it counts as none: what a thread writes is known when it is written, also where it began earlier.
        """
        self._ns[part] += max(0, ns)

    # -- pauses between two steps

    def begin_pause(self) -> None:
        """A pause begins in which perfkit works."""
        self._pause_began = time.thread_time_ns()

    def end_pause(self, part: Part | None) -> None:
        """The pause is over, and was for ``part``; None: for what the clock counts with the steps."""
        took_ns, self._pause_began = self._in_pause(), None
        self._pauses_ns += took_ns
        if part is not None:
            self.add(part, took_ns)

    def _in_pause(self) -> int:
        return time.thread_time_ns() - self._pause_began if self._pause_began is not None else 0

    @property
    def own_time(self) -> OwnTime:
        """What no step took, up to now."""
        pauses_ns = self._pauses_ns + self._in_pause()
        return OwnTime(pauses_ns, pauses_ns + self._written_ns)

    @property
    def steps_and_rest_ns(self) -> int:
        """The process's time so far without `own_time`: the steps, and what is in none."""
        return time.process_time_ns() - self.own_time.process_ns

    @property
    def _written_ns(self) -> int:
        return trace_files.processor_ns() - self._written_before_ns

    def parts(self, windows_ns: int | None) -> dict[str, int]:
        """The parts so far, in ns; ``windows_ns`` is what windows took beyond ordinary steps, None: not known."""
        helpers_ns = _background.processor_ns() - self._helpers_before_ns
        windows_ns = (windows_ns or 0) + self._ns["windows"] + self._written_ns
        order = ("start", "windows", "checks", "helpers", "end")
        found = {**self._ns, "windows": windows_ns, "helpers": helpers_ns}
        return {name: found[name] for name in order if found.get(name)}
