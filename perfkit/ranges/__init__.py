"""Ranges and marks: who marks, who listens, and what it costs.

lookup          perfkit.range, perfkit.mark: from arguments to the one range of that name
context         the range as a context manager
decorator       the range around a function: its code is swapped while something listens
switch          who listens, and telling every range when that changes
nvtx            listener: a tool that receives NVTX
torch_profiler  listener: the torch profiler; torch_observer sees it start and stop
recorder        listener: perfkit's own counts and times; events reads what it wrote
modules         perfkit.annotate_modules: the ranges around the modules of a model
borrowed        ranges that the program has through nvtx and torch.cuda.nvtx, for a while
device          device time of the ranges that ask for it
dynamo          what torch.compile sees of all this: nothing
"""

from __future__ import annotations

from perfkit.ranges import nvtx_bridge as _borrowed
from perfkit.ranges import nvtx_listener as _nvtx
from perfkit.ranges import profiler_observer as _torch_observer
from perfkit.ranges import recorder as _recorder
from perfkit.ranges.lookup import mark as mark
from perfkit.ranges.lookup import range as range
from perfkit.ranges.module_ranges import annotate_modules as annotate_modules
from perfkit.ranges.nvtx_bridge import borrow_nvtx as borrow_nvtx
from perfkit.ranges.recorder import Recorder as Recorder
from perfkit.ranges.recorder import start_recorder as start_recorder

__all__ = ["Recorder", "annotate_modules", "borrow_nvtx", "installed", "mark", "range", "start_recorder"]


def installed() -> list[str]:
    """What perfkit has patched now: lines "permanent: ..." for the observer of the torch profiler, "now: ..." else.

    What is there now must be gone when no recorder and no profiler runs.
    """
    listening = ["now: recorder"] if _recorder.running() else []
    lent = [f"now: {name}, borrowed" for name in _borrowed.borrowed()]
    return [*(f"permanent: {name}" for name in _torch_observer.patched()), *listening, *lent]


_torch_observer.observe()
_nvtx.start()
