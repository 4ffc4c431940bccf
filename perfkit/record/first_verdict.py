"""The first verdict: diagnosed by a background process, and printed during training."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from perfkit._background import BackgroundError, BackgroundProcess
from perfkit._stderr import write

#: The diagnosis of a large window takes some seconds of a core; after this long, steps have changed anyway.
_TIMEOUT_S = 600.0


class FirstVerdict:
    """Diagnoses ``folder``, a run that is still being written, once, in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: BackgroundProcess | None = None
        self._active = True

    def print_soon(self, until_written: Callable[[], None]) -> None:
        """Print it when it is ready; ``until_written`` waits for the files that the window's threads write."""
        threading.Thread(target=self._print, args=(until_written,), name="perfkit first verdict", daemon=True).start()

    def _print(self, until_written: Callable[[], None]) -> None:
        until_written()
        if not self._active:
            return
        # An error here is harmless: the full verdict comes at the end of the run.
        with suppress(BackgroundError):
            # In the program's current folder: paths in the verdict are relative to it.
            self._process = BackgroundProcess(
                "perfkit", "diagnose", str(self._folder), "--early", timeout_s=_TIMEOUT_S, folder=Path.cwd()
            )
            text = self._process.output().decode()
            if self._active:
                write(f"{text}\n")

    def cancel(self) -> None:
        """The run is over: its full verdict replaces the first one."""
        self._active = False
        if self._process is not None:
            self._process.kill()
