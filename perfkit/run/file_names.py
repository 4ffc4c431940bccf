"""Names of the files of windows in a rank's folder."""

from __future__ import annotations

from pathlib import Path

#: Every trace of a window that Kineto recorded.
TRACES = "window-*.pt.trace.json.gz"


def trace_name(window: int) -> str:
    """The trace of a window; other tools look for this suffix."""
    return f"window-{window}.pt.trace.json.gz"


def nsys_name(window: int) -> str:
    """A window that nsys recorded, cut from its export."""
    return f"window-{window}.sqlite"


def memory_name(window: int) -> str:
    """The snapshot of device memory of a window."""
    return f"memory-{window}.pickle"


def peak_name(number: int) -> str:
    """The trace of the steps that are recorded for memory; their `MemorySteps` and lines are next to it."""
    return f"peak-{number}.pt.trace.json.gz"


def peak_record_path(trace: Path) -> Path:
    """The path of the `MemorySteps` next to such a trace."""
    return trace.with_name(trace.name.split(".", 1)[0] + ".json")


def spans_name(window: int) -> str:
    """Each run of a range in a window."""
    return f"ranges-{window}.npz"


def spans_path(trace: Path) -> Path:
    """The path of a window's ranges (`perfkit.run.arrays.write_spans`), given that of its trace."""
    return trace.with_name(trace.name.split(".", 1)[0].replace("window-", "ranges-", 1) + ".npz")


def stacks_path(trace: Path) -> Path:
    """The path of the trace of the step with stacks that follows a window, given that of the window's trace."""
    return trace.with_name(trace.name.replace("window-", "stacks-", 1))


def lines_path(stacks: Path) -> Path:
    """The path of the times of lines (`perfkit.run.arrays.write_line_times`), given that of the trace with stacks."""
    return stacks.with_name(stacks.name.split(".", 1)[0] + ".lines.npz")
