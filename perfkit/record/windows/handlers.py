"""Handlers: what is done with each finished window, beside the trace in the run folder.

A handler is a callable that gets the window's torch profiler, as torch's ``on_trace_ready`` does; all of
torch's own fit. A handler that fails is told once, and training goes on.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TextIO

from perfkit import _env
from perfkit._stderr import print_message
from perfkit.errors import UsageError
from perfkit.record.windows.trace_files import in_thread
from perfkit.run.atomic import write_atomically
from perfkit.run.remote import check_url, copy_out, is_url

Handler = Callable[[Any], None]

#: torch's sort keys that a table can be ordered by. For "device" torch takes "cuda" and "xpu" as well, and so do we.
_SORT_KEYS = (
    "cpu_time",
    "device_time",
    "cpu_time_total",
    "self_cpu_time_total",
    "device_time_total",
    "self_device_time_total",
    "cpu_memory_usage",
    "self_cpu_memory_usage",
    "device_memory_usage",
    "self_device_memory_usage",
    "count",
    "flops",
)


def to_folder(folder: str | os.PathLike[str], *, keep: int | None = None) -> Handler:
    """Write each window's trace into ``folder`` as ``rank<R>.step<N>.pt.trace.json.gz``.

    Args:
        folder: Made where it is not there; or a URL for fsspec, to which traces are copied beside training. A copy
            that fails is told, and training goes on.
        keep: Keep only the newest so many of this rank's traces; None keeps all.

    Raises:
        UsageError: ``keep`` is below 1, or no file system takes the URL.
        MissingDependency: fsspec needs another package for this kind of URL.
    """
    if keep is not None and (isinstance(keep, bool) or not isinstance(keep, int) or keep < 1):
        raise UsageError(f"keep must be at least 1 trace, got {keep!r}")
    if is_url(folder):
        check_url(os.fspath(folder))
        return _to_url(os.fspath(folder).rstrip("/"), keep)
    place = Path(folder)

    def write(profiler: Any) -> None:
        place.mkdir(parents=True, exist_ok=True)
        name = _name(profiler)
        # Beside and renamed: whoever watches the folder sees whole files only.
        beside = place / f".{name}"
        try:
            profiler.export_chrome_trace(str(beside))
            os.replace(beside, place / name)
        finally:
            beside.unlink(missing_ok=True)
        if keep is not None:
            for old in _oldest_first(path.name for path in place.iterdir())[:-keep]:
                (place / old).unlink(missing_ok=True)

    return write


def _to_url(url: str, keep: int | None) -> Handler:
    # One copy after the other: the newest must come last, and only then an old one be removed.
    one = threading.Lock()

    def write(profiler: Any) -> None:
        folder = tempfile.TemporaryDirectory()
        try:
            profiler.export_chrome_trace(str(Path(folder.name) / _name(profiler)))
        except BaseException:
            folder.cleanup()
            raise

        def copy() -> None:
            with one, folder:
                try:
                    copy_out(Path(folder.name), url)
                    if keep is not None:
                        _remove_oldest(url, keep)
                except Exception as error:  # noqa: BLE001 - a file system may raise anything; training goes on
                    print_message(f"copying a trace to {url}: {type(error).__name__}: {error} (training goes on)")

        # The program's end waits for the last copy.
        in_thread(copy)

    return write


def _remove_oldest(url: str, keep: int) -> None:
    import fsspec

    system, path = fsspec.core.url_to_fs(url)
    there = {str(file).rsplit("/", 1)[-1]: file for file in system.ls(path, detail=False)}
    for name in _oldest_first(there)[:-keep]:
        system.rm_file(there[name])


def _name(profiler: Any) -> str:
    return f"rank{_env.rank()}.step{profiler.step_num}.pt.trace.json.gz"


def _oldest_first(names: Iterable[str]) -> list[str]:
    """The traces of this rank among these names, oldest first."""
    found = []
    for name in names:
        match = re.fullmatch(rf"rank{_env.rank()}\.step(\d+)\.pt\.trace\.json\.gz", name)
        if match:
            found.append((int(match.group(1)), name))
    return [name for _, name in sorted(found)]


def print_table(
    *, sort_by: str = "self_cpu_time_total", rows: int = 20, file: TextIO | None = None, by_shape: bool = False
) -> Handler:
    """Print torch's table of ops for each window.

    Args:
        sort_by: torch's key, as "self_cpu_time_total" or "self_cuda_time_total".
        rows: How many ops.
        file: Where to; stderr as it is then.
        by_shape: One row per op and input shapes (needs ``record_shapes=True``).

    Raises:
        UsageError: an unknown key, or less than one row.
    """
    if re.sub("cuda|xpu", "device", sort_by) not in _SORT_KEYS:
        raise UsageError(f"sort_by must be one of {', '.join(_SORT_KEYS)}, got {sort_by!r}")
    if isinstance(rows, bool) or not isinstance(rows, int) or rows < 1:
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
        text = "\n".join(lines) + "\n"
        write_atomically(place / f"rank{_env.rank()}.step{profiler.step_num}.stacks.txt", text.encode())

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
