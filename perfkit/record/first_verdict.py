"""The first verdict: worked out by a background process, and printed while training goes on."""

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
    """Has ``folder``, a run that is still being written, diagnosed once by a process of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: BackgroundProcess | None = None
        self._wanted = True

    def tell(self, until_written: Callable[[], None]) -> None:
        """Print it as soon as it is there; ``until_written`` waits for what the window's other threads write."""
        threading.Thread(target=self._tell, args=(until_written,), name="perfkit first verdict", daemon=True).start()

    def _tell(self, until_written: Callable[[], None]) -> None:
        until_written()
        if not self._wanted:
            return
        # Without it the run goes on, and its end brings the full verdict.
        with suppress(BackgroundError):
            # In the program's current folder, to which the files in the verdict are relative.
            self._process = BackgroundProcess(
                "perfkit", "diagnose", str(self._folder), "--early", timeout_s=_TIMEOUT_S, folder=Path.cwd()
            )
            text = self._process.output().decode()
            if self._wanted:
                write(f"{text}\n")

    def call_off(self) -> None:
        """The run is over: the full verdict comes now, and the first would come after it."""
        self._wanted = False
        if self._process is not None:
            self._process.kill()
