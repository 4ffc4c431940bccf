"""`what_if`: what a step would take without a problem, from a trace or a run's newest window."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perfkit.errors import UsageError, check_whole_number
from perfkit.replay.results import WhatIf

if TYPE_CHECKING:
    from perfkit.trace import Trace
    from perfkit.trace.file_text import Progress

__all__ = ["WhatIf", "what_if"]


def what_if(
    recording: str | os.PathLike[str] | Trace,
    *,
    hide_loader: bool | int = False,
    without: Sequence[str] = (),
    scale: Mapping[str, float] | None = None,
    fuse: Sequence[str] = (),
    bandwidth: float | None = None,
    against: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> WhatIf:
    """Replay the steps of a recording with changes, by the dependencies of its tasks.

    Without changes the answer holds the critical path and what each change alone would save.

    Args:
        recording: A run folder (its newest window, scaled to the steps that were not recorded), a Kineto trace, an nsys
            export, or a trace that was read.
        hide_loader: Background processes prepare the batches, as many as keep up; a number: so many, and a step takes
            no less than a batch divided by them.
        without: "sync" (the host does not wait for the device), "copy-waits" (copies are asynchronous),
            "launch-overhead" (CUDA graphs), "exposed-communication" (collectives overlap), "rank-waits" (all ranks
            arrive at collectives together).
        scale: Glob pattern of ops, kernels, ranges or modules -> how many times as long they take; 0 takes them out.
        fuse: Glob patterns: each range or module that matches, and matching ops in a row, become one op.
        bandwidth: Collectives transfer this many times as fast.
        against: A recording with the change made: its step is compared with the prediction.
        progress: Called with (bytes read, bytes in all) while a trace is read.

    Returns:
        The step now, the interval of the step then, and the critical path of each.

    Raises:
        UsageError: a change is unknown, a pattern matches nothing in the trace, or the recording has no events.
        RunError, TraceError: a path is missing, or neither a run with a window nor a trace.
    """
    changes: list[tuple[str, Any]] = []
    if hide_loader is not False:
        if hide_loader is not True:
            check_whole_number("hide_loader, where it is not True or False,", hide_loader, minimum=1)
        changes.append(("hide-loader", None if hide_loader is True else hide_loader))
    if isinstance(without, str) or isinstance(fuse, str):
        raise UsageError("without and fuse take several names: write ('sync',) for one")
    changes += [(word, None) for word in without]
    for pattern, factor in (scale or {}).items():
        changes.append(("scale", (pattern, _factor(f"scale of {pattern!r}", factor, minimum=0))))
    changes += [("fuse", pattern) for pattern in fuse]
    if bandwidth is not None:
        changes.append(("bandwidth", _factor("bandwidth", bandwidth, minimum=1e-6)))
    # They load numpy, which a program that imports perfkit may not have loaded yet.
    from perfkit.replay._answering import answer

    return answer(recording, changes, against, progress)


def _factor(name: str, value: object, *, minimum: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < minimum:
        raise UsageError(f"{name} must be a number of at least {minimum:g}, got {value!r}")
    return float(value)
