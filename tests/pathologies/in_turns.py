"""Runs a program and its corrected twin in turns, and measures what the correction saves.

A shared machine can be a quarter slower in one minute than in the next. That is more than many corrections save, so two
runs one after the other say little. Here both are started at once and one of them is always stopped. They change places
every fifth of a second, so the machine's other load affects both alike.
"""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

import psutil
from judging import TIMEOUT_S, start, timed_steps, typical
from suite import Program

#: Ten steps of most programs. Far shorter than the periods in which a machine is slow, and far longer than a stop
#: costs: some milliseconds to find the processes, and caches that the other program has filled.
TURN_S = 0.2
#: Steps are timed and nothing else is recorded: the first window opens after a million steps.
_NO_WINDOW = ("--quiet", "--schedule", "1000000,0,1")

_Span = tuple[int, int]


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


def measure(program: Program, folder: Path) -> StepPair:
    """Run both until one ends; the steps that the other one then makes alone do not count.

    A twin that does the same work in fewer steps (a call per batch instead of one per sample) has longer ones: its step
    is counted as the work of one step of the broken program.
    """
    folders = folder / "broken", folder / "fixed"
    children = [start(program, path, *_NO_WINDOW, fixed=index == 1) for index, path in enumerate(folders)]
    stops, ended_ns = _alternate(children)
    steps = [
        typical(program, _running_times(path, spans, ended_ns)) for path, spans in zip(folders, stops, strict=True)
    ]
    broken_ns, fixed_ns = steps
    counts = [len(timed_steps(path)) for path in folders]
    if fixed_ns is not None and all(counts):
        fixed_ns *= counts[1] / counts[0]
    return StepPair(broken_ns, fixed_ns)


def _alternate(children: list[subprocess.Popen[str]]) -> tuple[list[list[_Span]], int]:
    """Let the children run in turns until one ends; returns the times at which each was stopped, and that end."""
    stops: list[list[_Span]] = [[], []]
    began_ns = time.perf_counter_ns()
    _send(children[1], signal.SIGSTOP)
    stopped_ns = time.perf_counter_ns()
    running, waiting = 0, 1
    while all(child.poll() is None for child in children):
        if time.perf_counter_ns() - began_ns > TIMEOUT_S * 1_000_000_000:
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
            child.wait(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            _send(child, signal.SIGKILL)
            child.wait()
    return stops, ended_ns


def _send(child: subprocess.Popen[str], number: signal.Signals) -> None:
    """Send a signal to a program, its ranks and its workers: a launcher puts ranks into sessions of their own."""
    try:
        process = psutil.Process(child.pid)
        processes = [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for each in processes:
        try:
            each.send_signal(number)
        except psutil.NoSuchProcess:
            continue


def _running_times(folder: Path, stops: list[_Span], ended_ns: int) -> list[int]:
    """The times of the steps, without the time for which the program was stopped."""
    times = []
    for row in timed_steps(folder):
        begin_ns, end_ns = row.start_ns, row.start_ns + row.wall_ns
        if end_ns > ended_ns:
            break
        stopped_ns = sum(max(0, min(end_ns, to_ns) - max(begin_ns, from_ns)) for from_ns, to_ns in stops)
        times.append(row.wall_ns - stopped_ns)
    return times
