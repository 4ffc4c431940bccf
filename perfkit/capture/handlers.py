"""Handlers: what is done with each finished window, beside the trace in the run folder.

A handler is a callable that gets the window's torch profiler, as torch's ``on_trace_ready`` does; all of
torch's own fit. A handler that fails is told once, and training goes on.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from perfkit import _env
from perfkit.errors import UsageError

Handler = Callable[[Any], None]

#: torch's sort keys that a table can be ordered by; "device" where torch once said "cuda".
_SORT_KEYS = (
    "cpu_time_total",
    "self_cpu_time_total",
    "device_time_total",
    "self_device_time_total",
    "cpu_memory_usage",
    "self_cpu_memory_usage",
    "device_memory_usage",
    "self_device_memory_usage",
    "count",
)


def to_folder(folder: str | os.PathLike[str], *, keep: int | None = None) -> Handler:
    """Write each window's trace into ``folder`` as ``rank<R>.step<N>.pt.trace.json.gz``.

    Args:
        folder: Made where it is not there.
        keep: Keep only the newest so many of this rank's traces; None keeps all.

    Raises:
        UsageError: ``keep`` is below 1.
    """
    if keep is not None and (isinstance(keep, bool) or keep < 1):
        raise UsageError(f"keep must be at least 1 trace, got {keep!r}")
    place = Path(folder)

    def write(profiler: Any) -> None:
        place.mkdir(parents=True, exist_ok=True)
        name = f"rank{_env.rank()}.step{profiler.step_num}.pt.trace.json.gz"
        # Beside and renamed: whoever watches the folder sees whole files only.
        beside = place / f".{name}"
        try:
            profiler.export_chrome_trace(str(beside))
            os.replace(beside, place / name)
        finally:
            beside.unlink(missing_ok=True)
        if keep is not None:
            for old in _traces(place)[:-keep]:
                old.unlink(missing_ok=True)

    return write


def _traces(place: Path) -> list[Path]:
    """Traces of the rank in a folder, oldest first."""
    found = []
    for path in place.iterdir():
        match = re.fullmatch(rf"rank{_env.rank()}\.step(\d+)\.pt\.trace\.json\.gz", path.name)
        if match:
            found.append((int(match.group(1)), path))
    return [path for _, path in sorted(found)]


def print_table(
    *, sort_by: str = "self_cpu_time_total", rows: int = 20, file: TextIO | None = None, by_shape: bool = False
) -> Handler:
    """Print torch's table of ops for each window.

    Args:
        sort_by: torch's key.
        rows: How many ops.
        file: Where to; stderr as it is then.
        by_shape: One row per op and input shapes (needs ``record_shapes=True``).

    Raises:
        UsageError: an unknown key, or less than one row.
    """
    if sort_by not in _SORT_KEYS:
        raise UsageError(f"sort_by must be one of {', '.join(_SORT_KEYS)}, got {sort_by!r}")
    if isinstance(rows, bool) or rows < 1:
        raise UsageError(f"rows must be at least 1, got {rows!r}")

    def show(profiler: Any) -> None:
        averages = profiler.key_averages(group_by_input_shape=by_shape)
        print(averages.table(sort_by=sort_by, row_limit=rows), file=file or sys.stderr)

    return show


def save_stacks(folder: str | os.PathLike[str]) -> Handler:
    """Write each window's host stacks as ``rank<R>.step<N>.stacks.txt``, what flame graph tools read.

    One line per stack: frames and ops, outermost first, parted by ";", and the microseconds that its innermost
    one took by itself. Python frames are there with ``with_stack=True``; without it the stacks are of ops only.
    """
    place = Path(folder)

    def write(profiler: Any) -> None:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place) as beside:
            trace = Path(beside) / "window.json"
            profiler.export_chrome_trace(str(trace))
            lines = [f"{stack} {own_ns // 1000}" for stack, own_ns in fold(trace).items() if own_ns >= 1000]
        (place / f"rank{_env.rank()}.step{profiler.step_num}.stacks.txt").write_text("\n".join(lines) + "\n")

    return write


def fold(path: Path) -> dict[str, int]:
    """Stack of host events in a trace -> time in ns that its innermost event took by itself."""
    import numpy as np

    from perfkit.trace import Kind, read_trace

    trace = read_trace(path)
    rows = np.flatnonzero(trace.is_kind(Kind.OP, Kind.PYTHON, Kind.RANGE))
    above = trace.above(trace.is_kind(Kind.OP, Kind.PYTHON, Kind.RANGE))
    own = trace.end_ns - trace.start_ns
    inner = rows[above[rows] >= 0]
    np.subtract.at(own, above[inner], (trace.end_ns - trace.start_ns)[inner])
    stacks: dict[int, str] = {-1: ""}
    folded: dict[str, int] = {}
    # Outermost first: an event begins no earlier than the one around it, and is no longer.
    for row in rows[np.lexsort((-trace.end_ns[rows], trace.start_ns[rows]))].tolist():
        # ";" parts frames and a blank the number, so neither may stand in a name.
        name = trace.names[trace.name[row]].replace(";", ",").replace(" ", "_")
        around = stacks.get(int(above[row]), "")
        stack = stacks[row] = f"{around};{name}" if around else name
        folded[stack] = folded.get(stack, 0) + max(0, int(own[row]))
    return folded
