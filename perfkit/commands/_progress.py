"""Progress on stderr, shown once it takes longer than a second: a bar for reading, a spinner for all else."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, DownloadColumn, Progress, ProgressColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from perfkit._text import printable
from perfkit.reports.console import stderr_console

#: Anything shorter needs no bar.
_PATIENCE_S = 1.0


@contextmanager
def reading_bar(what: str, amount: ProgressColumn | None = None) -> Iterator[Callable[[int, int], None]]:
    """Yield a callback for (done, in total) that shows a bar on stderr after one second.

    ``amount`` shows both numbers; by default they are bytes.
    """
    began = time.monotonic()
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        amount or DownloadColumn(),
        TimeRemainingColumn(),
        console=stderr_console(),
        transient=True,
    )
    task: TaskID | None = None

    def report(done: int, total: int) -> None:
        nonlocal task
        if task is None:
            if time.monotonic() - began < _PATIENCE_S or not bar.console.is_terminal:
                return
            bar.start()
            task = bar.add_task(printable(what), total=total)
        bar.update(task, completed=done, total=total)

    try:
        yield report
    finally:
        if task is not None:
            bar.stop()


@contextmanager
def working(what: str) -> Iterator[None]:
    """Show a spinner on stderr after one second, for work whose length is not known."""
    console = stderr_console()
    if not console.is_terminal:
        yield
        return
    status = console.status(Text(printable(what)))
    later = threading.Timer(_PATIENCE_S, status.start)
    later.daemon = True
    later.start()
    try:
        yield
    finally:
        later.cancel()
        later.join()
        status.stop()
