"""Compiling that recurs: idle time of a device in which torch.compile compiles in several steps of a window.

What is compiled once is first use. A function is compiled for the first sizes, and once more for sizes that vary; a
program that still compiles after that does so again and again.
"""

from __future__ import annotations

import numpy as np

from perfkit.measures._nested import sum_by
from perfkit.measures._rows import nearest_above
from perfkit.measures.device._device_work import DeviceWork
from perfkit.measures.device._first_use import compiling
from perfkit.measures.steps._trace_steps import step_of
from perfkit.trace.columns import Trace
from perfkit.trace.intervals import Bools, Ints

#: The share of a step from which compiling counts as that step's: what findings need too. A function that is only
#: looked at, or one small kernel, takes less.
_PART = 0.05
#: Steps that compile, the program's first not counted: two of them may be functions or sizes that are met for once, as
#: a second dimension that varies (chosen).
_STEPS = 3


def recompiles(trace: Trace, work: DeviceWork, starts: Ints, lengths: Ints, rows: Ints) -> Bools:
    """Which of these pieces of idle time, each in a host row (-1: none), are spent in compiling that recurs.

    None where fewer than three steps compile, or where the last one does not: then it has ended. The first step of a
    program (number 0) compiles what it meets first; its pieces are none of them.
    """
    found = np.zeros(rows.size, bool)
    steps = work.steps
    known = np.flatnonzero(rows >= 0)
    compiles = compiling(trace)
    if steps.row.size < _STEPS or not known.size or not compiles.any():
        return found
    inside = compiles[rows[known]] | (nearest_above(trace, rows[known], compiles) >= 0)
    pieces = known[inside]
    step = step_of(steps, starts[pieces])
    later = (step >= 0) & (steps.number[step] > 0)
    pieces, step = pieces[later], step[later]
    spent = sum_by(step, lengths[pieces], steps.row.size)
    has = spent >= _PART * np.maximum(1, np.diff(work.bounds))
    if has.sum() >= _STEPS and has[-1]:
        found[pieces] = True
    return found
