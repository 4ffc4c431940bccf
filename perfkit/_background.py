"""Work in a process of its own at low priority, so that it neither slows nor ends the process that asks for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

#: Where perfkit is imported from.
_PARENT = Path(__file__).resolve().parents[1]
#: Bytes of the process's stderr that are searched for its last line, and characters of that line in an error.
_ERROR_BYTES, _ERROR_CHARACTERS = 4_096, 1_000


class BackgroundError(Exception):
    """The process gave no output; the text says why, in a sentence."""


class BackgroundProcess:
    """``python -m module arguments``: started at low priority with one thread, and with perfkit switched off.

    Args:
        module: What to run.
        arguments: Its command line.
        timeout_s: Seconds after which the process is killed.
        max_bytes: The largest output that `output` returns.
        folder: Its current folder, which is the first place where Python looks for modules. The default is the folder
            that perfkit is imported from, because the caller's may hold anybody's files.

    Raises:
        BackgroundError: no process could be started.
    """

    def __init__(
        self, module: str, *arguments: str, timeout_s: float, max_bytes: int = 64 * 2**20, folder: Path = _PARENT
    ) -> None:
        command = [sys.executable, "-m", module, *arguments]
        if (nice := shutil.which("nice")) is not None:
            command = [nice, "-n", "10", *command]
        self._timeout_s = timeout_s
        self._end_s = time.monotonic() + timeout_s
        self._max_bytes = max_bytes
        # Files, not pipes: the size of an output is known before it is read, and nothing blocks the process.
        self._stdout, self._stderr = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 - see `output`
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._stdout,
                stderr=self._stderr,
                cwd=folder,
                env={**os.environ, "PERFKIT_DISABLE": "1", "OMP_NUM_THREADS": "1"},
            )
        except OSError as error:
            raise BackgroundError(f"no process could be started: {error.strerror}") from error

    @property
    def running(self) -> bool:
        """Whether it still works; it is killed here if its time is over."""
        if self._process.poll() is None and time.monotonic() > self._end_s:
            self.kill()
        return self._process.returncode is None

    def kill(self) -> None:
        """End the process, if it has not ended yet."""
        self._process.kill()
        self._process.wait()

    def output(self) -> bytes:
        """Wait for the end of the process, and return what it printed; to be called once.

        Raises:
            BackgroundError: it failed (the last line of its stderr says why), was killed, took longer than its time
                limit, or printed more than ``max_bytes``.
        """
        with self._stdout, self._stderr:
            try:
                code = self._process.wait(max(0.0, self._end_s - time.monotonic()))
            except subprocess.TimeoutExpired as error:
                self.kill()
                raise BackgroundError(f"it took longer than {self._timeout_s:.0f} s") from error
            if code:
                raise BackgroundError(_last_line(self._stderr) or f"the process ended with exit code {code}")
            size = self._stdout.seek(0, os.SEEK_END)
            if size > self._max_bytes:
                raise BackgroundError(f"its output of {size >> 20} MiB is larger than {self._max_bytes >> 20} MiB")
            self._stdout.seek(0)
            return self._stdout.read()


def _last_line(file: IO[bytes]) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _ERROR_BYTES))
    text = file.read().decode(errors="replace").strip()
    return text.rsplit("\n", 1)[-1][:_ERROR_CHARACTERS]
