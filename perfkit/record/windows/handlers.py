"""Handlers: what else is done with each finished window, such as a copy of its trace, a table of ops or its stacks.

A handler is a callable that gets the window's torch profiler, as torch's ``on_trace_ready`` does; all of torch's own
fit. If a handler fails, that is reported once, and training continues.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TextIO

from perfkit import _env
from perfkit._stderr import print_message
from perfkit.errors import UsageError, check_whole_number
from perfkit.record.windows.trace_files import BackgroundWriter
from perfkit.run.atomic import replacing, write_atomically
from perfkit.run.remote import check_url, copy_out, is_url

Handler = Callable[[Any], None]

#: torch's sort keys for a table. For "device", torch and `print_table` accept "cuda" and "xpu" as well.
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

#: Traces that wait for their copy to a URL, the one that is being copied included: each is a file on this machine.
_MAX_COPIES = 4


def to_folder(folder: str | os.PathLike[str], *, keep: int | None = None) -> Handler:
    """Write each window's trace into ``folder`` as ``rank<R>.step<N>.pt.trace.json.gz``.

    Args:
        folder: Created if it does not exist; or a URL for fsspec, to which traces are copied while training continues.
            If a copy fails, that is reported; while four wait, others are not copied.
        keep: Keep only this many newest traces of this rank. Default: all.

    Raises:
        UsageError: ``keep`` is below 1, or no file system takes the URL.
        MissingDependency: fsspec needs another package for this kind of URL.
    """
    if keep is not None:
        check_whole_number("keep", keep, minimum=1)
    if is_url(folder):
        check_url(os.fspath(folder))
        return _to_url(os.fspath(folder).rstrip("/"), keep)
    target = Path(folder)

    def write(profiler: Any) -> None:
        target.mkdir(parents=True, exist_ok=True)
        with replacing(target / _name(profiler)) as part:
            profiler.export_chrome_trace(str(part))
        for old in _too_old((path.name for path in target.iterdir()), keep):
            (target / old).unlink(missing_ok=True)

    return write


def _to_url(url: str, keep: int | None) -> Handler:
    # One copy after the other: the newest must come last, and only then an old one be removed.
    writer = BackgroundWriter()
    skipped = False

    def write(profiler: Any) -> None:
        nonlocal skipped
        if writer.unfinished >= _MAX_COPIES:
            if not skipped:
                print_message(f"traces are made faster than they are copied to {url}: some are not copied")
            skipped = True
            return
        folder = tempfile.TemporaryDirectory()
        try:
            profiler.export_chrome_trace(str(Path(folder.name) / _name(profiler)))
        except BaseException:
            folder.cleanup()
            raise

        def copy() -> None:
            with folder:
                try:
                    copy_out(Path(folder.name), url)
                    if keep is not None:
                        _remove_too_old(url, keep)
                except Exception as error:  # noqa: BLE001 - a file system may raise anything; training continues
                    print_message(f"copying a trace to {url}: {type(error).__name__}: {error} (training continues)")

        # The program's exit waits for the last copy.
        writer.start(copy)

    return write


def _remove_too_old(url: str, keep: int) -> None:
    # Optional file systems make it slow to import, and most programs write no trace to a URL.
    import fsspec

    system, path = fsspec.core.url_to_fs(url)
    files = {str(file).rsplit("/", 1)[-1]: file for file in system.ls(path, detail=False)}
    for name in _too_old(files, keep):
        system.rm_file(files[name])


def _name(profiler: Any) -> str:
    return f"rank{_env.rank()}.step{profiler.step_num}.pt.trace.json.gz"


def _too_old(names: Iterable[str], keep: int | None) -> list[str]:
    """The traces of this rank among these names without the newest ``keep``."""
    if keep is None:
        return []
    pattern = rf"rank{_env.rank()}\.step(\d+)\.pt\.trace\.json\.gz"
    found = sorted((int(match[1]), name) for name in names if (match := re.fullmatch(pattern, name)))
    return [name for _, name in found[:-keep]]


def print_table(
    *, sort_by: str = "self_cpu_time_total", rows: int = 20, file: TextIO | None = None, by_shape: bool = False
) -> Handler:
    """Print torch's table of ops for each window.

    Args:
        sort_by: torch's key, such as "self_cpu_time_total" or "self_cuda_time_total".
        rows: How many ops.
        file: Where to print. Default: the stderr of that moment.
        by_shape: One row per op and input shapes (needs ``record_shapes=True``).

    Raises:
        UsageError: an unknown key, or less than one row.
    """
    if re.sub("cuda|xpu", "device", sort_by) not in _SORT_KEYS:
        raise UsageError(f"sort_by must be one of {', '.join(_SORT_KEYS)}, got {sort_by!r}")
    check_whole_number("rows", rows, minimum=1)

    def show(profiler: Any) -> None:
        averages = profiler.key_averages(group_by_input_shape=by_shape)
        print(averages.table(sort_by=sort_by, row_limit=rows), file=file or sys.stderr)

    return show


def save_stacks(folder: str | os.PathLike[str]) -> Handler:
    """Write each window's host stacks as ``rank<R>.step<N>.stacks.txt``, the format of flame graph tools.

    One line per stack: frames and ops, outermost first, separated by ";", and the microseconds that the innermost one
    took by itself. Python frames are included with ``with_stack=True``; without it the stacks are of ops only.
    """
    target = Path(folder)

    def write(profiler: Any) -> None:
        # Importing perfkit imports no numpy, and neither does training without this handler.
        from perfkit.measures.host.folded_stacks import fold_stacks
        from perfkit.trace import read_trace

        target.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target) as part:
            trace = Path(part) / "window.json"
            profiler.export_chrome_trace(str(trace))
            folded = fold_stacks(read_trace(trace))
            lines = [f"{stack} {own_ns // 1000}" for stack, own_ns in folded.items() if own_ns >= 1000]
        text = "\n".join(lines) + "\n"
        write_atomically(target / f"rank{_env.rank()}.step{profiler.step_num}.stacks.txt", text.encode())

    return write
