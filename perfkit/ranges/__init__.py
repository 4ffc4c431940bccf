"""Ranges and marks: what a user calls, who listens, and the code that runs at begin and end.

What a user calls:
    range_function    perfkit.range and perfkit.mark
    range_arguments   which names, colors and payloads are valid
    range_objects     the object per name, and ``with``
    decorator         the range around a function or module; `trampoline` is the code that the function then runs
    module_ranges     perfkit.annotate_modules
    nvtx_bridge       ranges of a program that uses nvtx or torch.cuda.nvtx
Who listens (`listeners` has the protocol and switches them):
    nvtx_listener, profiler_listener, recorder_listener, device_times
    profiler_observer detects that the torch profiler starts or stops
The code at begin and end:
    enter_exit        generates it; it calls listeners through `listener_calls`
    dynamo            hides it from torch.compile
What the recorder does with it:
    recorder, event_stream, event_log
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfkit.ranges import device_times as device_times  # a listener, used by the recorder only
from perfkit.ranges import nvtx_listener, profiler_observer, recorder_listener
from perfkit.ranges.module_ranges import annotate_modules as annotate_modules
from perfkit.ranges.nvtx_bridge import bridge_nvtx as bridge_nvtx
from perfkit.ranges.range_function import mark as mark
from perfkit.ranges.range_function import range as range

if TYPE_CHECKING:
    from perfkit.ranges.recorder import RangeRecorder

__all__ = ["annotate_modules", "bridge_nvtx", "installed", "mark", "range", "start_recorder"]


def start_recorder() -> RangeRecorder:
    """Record every range in every thread from now on.

    Raises:
        UsageError: a recorder is running already.
    """
    # numpy and msgspec, which a program that only marks ranges does not need
    from perfkit.ranges import recorder

    return recorder.start()


def installed() -> list[str]:
    """What is in place: "permanent: ..." for the observer of the torch profiler, "now: recorder" while it runs."""
    recording = ["now: recorder"] if recorder_listener.LISTENER.recorder is not None else []
    return [*(f"permanent: {name}" for name in profiler_observer.patched()), *recording]


profiler_observer.start()
nvtx_listener.LISTENER.start()
