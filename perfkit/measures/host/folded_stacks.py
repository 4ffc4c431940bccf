"""Stacks of host events with the time of the innermost one, as flame graph tools read them."""

from __future__ import annotations

import sys

import numpy as np

from perfkit.measures._nested import sum_by
from perfkit.measures._rows import mask_of
from perfkit.measures.device._origins import launching_ops
from perfkit.measures.host._python_frames import FRAME
from perfkit.trace.columns import Kind, Trace
from perfkit.trace.intervals import Bools, Ints

#: ";" separates frames and a blank the number, so neither may be in a name.
_NAMES = str.maketrans(" ;\t\n", "_,__")
#: Python's file that runs a program, below frames of perfkit's under `perfkit run`; frozen since 3.11.
_RUNS_PROGRAMS = ("runpy.py", "<frozen runpy>")


def fold_stacks(trace: Trace, *, of_device: bool = False) -> dict[str, int]:
    """Stack of ops, ranges and Python frames, outermost first -> the time (ns) that its innermost event took by itself.

    Args:
        trace: The trace; perfkit's own threads are left out.
        of_device: Not host time, but that of the device work that the innermost op launched.
    """
    host = trace.is_kind(Kind.OP, Kind.PYTHON, Kind.RANGE)
    host &= ~own_frames(trace)
    rows = np.flatnonzero(host)
    above = trace.above(host)
    own = _device_time(trace) if of_device else _own_time(trace, rows, above)
    stacks: dict[int, str] = {-1: ""}
    folded: dict[str, int] = {}
    # Outermost first: an event begins no earlier than the one around it, and is no longer.
    for row in rows[np.lexsort((-trace.end_ns[rows], trace.start_ns[rows]))].tolist():
        name = trace.names[trace.name[row]].translate(_NAMES)
        outer = stacks.get(int(above[row]), "")
        stack = stacks[row] = f"{outer};{name}" if outer else name
        folded[stack] = folded.get(stack, 0) + max(0, int(own[row]))
    return folded


def _own_time(trace: Trace, rows: Ints, above: Ints) -> Ints:
    own = trace.end_ns - trace.start_ns
    inner = rows[above[rows] >= 0]
    np.subtract.at(own, above[inner], (trace.end_ns - trace.start_ns)[inner])
    return own


def _device_time(trace: Trace) -> Ints:
    work = trace.device_rows
    op = launching_ops(trace, work)
    return sum_by(op[op >= 0], trace.duration_ns[work[op >= 0]], len(trace))


def own_frames(trace: Trace) -> Bools:
    """The rows that are Python frames of perfkit's own threads: its code started them, and they run no op.

    What is called within perfkit's code may be anybody's: a callback of the garbage collector runs in any thread.
    """
    frames = np.flatnonzero(trace.is_kind(Kind.PYTHON))
    frames = frames[~np.isin(trace.track[frames], trace.track[trace.is_kind(Kind.OP, Kind.RUNTIME)])]
    # Outermost first. Each thread begins with Python's own first frame: torch puts several threads on one track.
    frames = frames[np.lexsort((-trace.end_ns[frames], trace.start_ns[frames], trace.track[frames]))]
    perfkits, known, begins, runs = (np.zeros(len(trace.names), bool) for _ in range(4))
    for code in np.flatnonzero(np.bincount(trace.name[frames], minlength=len(trace.names))).tolist():
        if (match := FRAME.match(trace.names[code])) is not None:
            owner = _owner(match[1])
            perfkits[code], known[code] = owner == "perfkit", owner is not None
            begins[code] = match[1].endswith("threading.py") and match[3] == "_bootstrap"
            runs[code] = match[1].endswith(_RUNS_PROGRAMS)
    name, track = trace.name[frames], trace.track[frames]
    thread = np.cumsum(begins[name] | (np.diff(track, prepend=-1) != 0))
    threads, first = np.unique(thread[known[name]], return_index=True)
    started = threads[perfkits[name[known[name]][first]]]
    return mask_of(trace, frames[np.isin(thread, np.setdiff1d(started, thread[runs[name]]))])


def _owner(file: str) -> str | None:
    """Who owns the file of a frame, which lacks the folder of ``sys.path`` that contains it; None for Python's own."""
    parts = file.replace("\\", "/").split("/")
    if "perfkit" in parts[:-1]:
        return "perfkit"
    name = parts[-1].removesuffix(".py") if len(parts) == 1 or file.startswith(("/", "<")) else parts[0]
    return None if name in sys.stdlib_module_names or file.startswith("<") else "other"
