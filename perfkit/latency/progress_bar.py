"""The progress bar of a measurement, on stderr."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from perfkit.latency.measuring import SizeProgress

#: No bar is shown for a shorter measurement.
_BAR_AFTER_S = 1.0


@contextmanager
def progress_bar(*, show: bool) -> Iterator[SizeProgress]:
    """A progress bar, shown after one second; drawn only between samples, because a thread would disturb them."""
    began = time.monotonic()
    bar = Progress(
        TextColumn("latency at batch size {task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        auto_refresh=False,
    )
    task = bar.add_task("", total=1.0)

    def report(size: int, share: float) -> None:
        if show and bar.console.is_terminal and time.monotonic() - began >= _BAR_AFTER_S:
            bar.start()
            bar.update(task, completed=share, description=str(size), refresh=True)

    try:
        yield report
    finally:
        if bar.live.is_started:
            bar.stop()
