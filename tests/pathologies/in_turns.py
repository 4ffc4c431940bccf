"""Measures what the correction of a program saves: the program runs in turns with its corrected twin, or with a change
that perfkit applies to it."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import NamedTuple

from judging import TIMEOUT_S, start, timed_steps, typical
from suite import Program

from perfkit.trial.processes import family_of, send
from perfkit.trial.turns import run_in_turns, running_times

#: Steps are timed and nothing else is recorded: the first window opens after a million steps.
_NO_WINDOW = ("--quiet", "--schedule", "1000000,0,1")


class StepPair(NamedTuple):
    """The step of the broken program and of its twin in ns, measured in turns; None for a program without steps."""

    broken_ns: float | None
    fixed_ns: float | None

    @property
    def saved_share(self) -> float | None:
        """What the correction saves, as a share of the broken program's step."""
        if not self.broken_ns or self.fixed_ns is None:
            return None
        return 1 - self.fixed_ns / self.broken_ns


def measure(program: Program, folder: Path, change: str | None = None) -> StepPair:
    """Run both until one ends; the steps that the other one then makes alone do not count.

    The second is the corrected twin, or with ``change`` the broken program itself under ``perfkit run --with CHANGE``.

    A twin that does the same work in fewer steps (a call per batch instead of one per sample) has longer ones: its step
    is counted as the work of one step of the broken program.
    """
    folders = folder / "broken", folder / "fixed"
    options = ((), ("--with", change) if change else ())
    children = [
        start(program, path, *_NO_WINDOW, *given, fixed=index == 1 and change is None)
        for index, (path, given) in enumerate(zip(folders, options, strict=True))
    ]
    turns = run_in_turns(children, limit_s=TIMEOUT_S)
    for child in children:
        try:
            child.wait(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            send(family_of(child.pid), signal.SIGKILL)
            child.wait()
    broken_ns, fixed_ns = (
        typical(program, [one.ns for one in running_times(timed_steps(path), spans, turns.ended_ns)])
        for path, spans in zip(folders, turns.running, strict=True)
    )
    counts = [len(timed_steps(path)) for path in folders]
    if fixed_ns is not None and all(counts):
        fixed_ns *= counts[1] / counts[0]
    return StepPair(broken_ns, fixed_ns)
