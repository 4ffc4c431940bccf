"""Runs a program and its corrected twin in turns, and measures what the correction gains.

A shared machine is a quarter slower in one minute than in the next, which is more than many a correction gains, so
two runs one after the other tell little of it. Here both run at once, one of them always stopped: every fifth of a
second it is the other's turn, and what else the machine does meets both alike.
"""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

import psutil
from judging import TIMEOUT, rows_of, start, typical
from suite import Program

#: Ten steps of most programs: far shorter than a machine's slow spells, far longer than what a stop costs (some
#: milliseconds to find the processes, and caches that the other has filled).
TURN_S = 0.2
#: Steps are timed and nothing else is recorded: no window opens in so many.
_NO_WINDOW = ("--quiet", "--schedule", "1000000,0,1")

_Span = tuple[int, int]


class Gain(NamedTuple):
    """The step of the broken program and of its twin in ns, measured in turns; None where one of them has no steps."""

    broken_ns: float | None
    fixed_ns: float | None

    @property
    def share(self) -> float | None:
        """What the correction takes off the broken program's step, as a share of it."""
        if not self.broken_ns or self.fixed_ns is None:
            return None
        return 1 - self.fixed_ns / self.broken_ns


def measure(program: Program, folder: Path) -> Gain:
    """Run both until one ends; the other's last steps, which it makes alone, do not count."""
    folders = folder / "broken", folder / "fixed"
    children = [start(program, path, *_NO_WINDOW, fixed=index == 1) for index, path in enumerate(folders)]
    stops, ended_ns = _alternate(children)
    steps = [typical(program, _without(path, spans, ended_ns)) for path, spans in zip(folders, stops, strict=True)]
    return Gain(*steps)


def _alternate(children: list[subprocess.Popen[str]]) -> tuple[list[list[_Span]], int]:
    """Let the children run in turns until one has ended: when each was stopped, and when that was."""
    stops: list[list[_Span]] = [[], []]
    began_ns = time.perf_counter_ns()
    _send(children[1], signal.SIGSTOP)
    stopped_ns = time.perf_counter_ns()
    running, waiting = 0, 1
    while all(child.poll() is None for child in children):
        if time.perf_counter_ns() - began_ns > TIMEOUT * 1_000_000_000:
            break
        time.sleep(TURN_S)
        _send(children[running], signal.SIGSTOP)
        now_ns = time.perf_counter_ns()
        stops[waiting].append((stopped_ns, now_ns))
        stopped_ns = now_ns
        _send(children[waiting], signal.SIGCONT)
        running, waiting = waiting, running
    ended_ns = time.perf_counter_ns()
    stops[waiting].append((stopped_ns, ended_ns))
    _send(children[waiting], signal.SIGCONT)
    for child in children:
        try:
            child.wait(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            _send(child, signal.SIGKILL)
            child.wait()
    return stops, ended_ns


def _send(child: subprocess.Popen[str], number: signal.Signals) -> None:
    """Send a signal to a program with its ranks and workers, of which a launcher's are in sessions of their own."""
    try:
        process = psutil.Process(child.pid)
        everyone = [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for one in everyone:
        try:
            one.send_signal(number)
        except psutil.NoSuchProcess:
            continue


def _without(folder: Path, stops: list[_Span], ended_ns: int) -> list[int]:
    """The steps' times without the time that the program was stopped in them."""
    times = []
    for row in rows_of(folder):
        begin_ns, end_ns = row["start_ns"], row["start_ns"] + row["wall_ns"]
        if end_ns > ended_ns:
            break
        stopped_ns = sum(max(0, min(end_ns, to_ns) - max(begin_ns, from_ns)) for from_ns, to_ns in stops)
        times.append(row["wall_ns"] - stopped_ns)
    return times
