"""The first verdict: worked out and printed by a process of low priority, while training goes on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from perfkit._stderr import write


class FirstVerdict:
    """Has ``folder``, a run that is still being written, diagnosed once by a process of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None
        self._wanted = True

    def tell(self, until_written: Callable[[], None]) -> None:
        """Print it as soon as it is there; ``until_written`` waits for what the window's other threads write."""
        threading.Thread(target=self._tell, args=(until_written,), name="perfkit first verdict", daemon=True).start()

    def _tell(self, until_written: Callable[[], None]) -> None:
        until_written()
        if not self._wanted:
            return
        command = [sys.executable, "-m", "perfkit", "diagnose", str(self._folder), "--early"]
        if (nice := shutil.which("nice")) is not None:
            command = [nice, "-n", "10", *command]
        process = self._process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PERFKIT_DISABLE": "1", "OMP_NUM_THREADS": "1"},
        )
        text, _ = process.communicate()
        if process.returncode == 0 and self._wanted:
            write(f"{text}\n")

    def call_off(self) -> None:
        """The run is over: the full verdict comes now, and the first would come after it."""
        self._wanted = False
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
