"""Names of the files that windows leave in a rank's folder, for those who write, read, wait for and show them."""

from __future__ import annotations

from pathlib import Path

#: Every trace of a window that Kineto recorded.
TRACES = "window-*.pt.trace.json.gz"


def trace_name(window: int) -> str:
    """The trace of a window; the ending is the one that older tools look for."""
    return f"window-{window}.pt.trace.json.gz"


def nsys_name(window: int) -> str:
    """A window that nsys recorded, cut out of its export."""
    return f"window-{window}.sqlite"


def memory_name(window: int) -> str:
    """The snapshot of device memory of a window."""
    return f"memory-{window}.pickle"


def spans_name(window: int) -> str:
    """The ranges of a window, each time they ran."""
    return f"ranges-{window}.npz"


def spans_beside(trace: Path) -> Path:
    """Where the ranges of the window go whose trace goes to ``trace``: `perfkit.run.writing.write_spans`."""
    return trace.with_name(trace.name.split(".", 1)[0].replace("window-", "ranges-", 1) + ".npz")


def stacks_beside(trace: Path) -> Path:
    """Where the trace of the step for lines goes, for the window whose trace goes to ``trace``."""
    return trace.with_name(trace.name.replace("window-", "stacks-", 1))


def lines_beside(stacks: Path) -> Path:
    """Where the times of lines lie for the trace of a step for lines: `perfkit.run.writing.write_line_times`."""
    return stacks.with_name(stacks.name.split(".", 1)[0] + ".lines.npz")
