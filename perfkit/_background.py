"""Work in a process of its own at low priority, so that it neither slows nor ends the process that asks for it."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

#: Where perfkit is imported from.
_PARENT = Path(__file__).resolve().parents[1]
#: Bytes of the process's stderr that are searched for its last line, and characters of that line in an error.
_ERROR_BYTES, _ERROR_CHARACTERS = 4_096, 1_000
#: Seconds for a process that was killed to be gone, and for its last output to be read.
_END_S = 5.0
#: Seconds between two looks at a process that should end soon.
_POLL_S = 0.005
#: Bytes of one reply of a helper: a verdict has some kB.
_REPLY_BYTES = 2**24


#: How many processes were started here, those that have not been waited for, and what the others used (ns).
_started = 0
_running: set[subprocess.Popen[bytes]] = set()
_ended_ns = 0


def started() -> int:
    """The number of processes that were started here so far."""
    return _started


def processor_ns() -> int:
    """Processor time of all processes that were started here, in ns; of running ones only where the system shows it."""
    return _ended_ns + sum(_processor_ns(process) for process in list(_running))


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
        self._timeout_s = timeout_s
        self._end_s = time.monotonic() + timeout_s
        self._max_bytes = max_bytes
        # Files, not pipes: the size of an output is known before it is read, and nothing blocks the process.
        self._stdout, self._stderr = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 - see `output`
        self._process = _start(module, arguments, subprocess.DEVNULL, self._stdout, self._stderr, folder)

    @property
    def running(self) -> bool:
        """Whether it still works; it is killed here if its time is over."""
        if _poll(self._process) is None and time.monotonic() > self._end_s:
            self.kill()
        return self._process.returncode is None

    def kill(self) -> None:
        """End the process, if it has not ended yet."""
        _kill(self._process)

    def output(self) -> bytes:
        """Wait for the end of the process, and return what it printed; to be called once.

        Raises:
            BackgroundError: it failed (the last line of its stderr says why), was killed, took longer than its time
                limit, or printed more than ``max_bytes``.
        """
        with self._stdout, self._stderr:
            try:
                code = _wait(self._process, max(0.0, self._end_s - time.monotonic()))
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


class BackgroundHelper:
    """``python -m module``, started as `BackgroundProcess` starts one, that answers lines on stdin by lines on stdout.

    Args:
        module: What to run.
        on_reply: Called from a thread with each line of the process, and with None once it has ended.

    Raises:
        BackgroundError: no process could be started.
    """

    def __init__(self, module: str, on_reply: Callable[[bytes | None], None]) -> None:
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `_read`
        #: The last line of its stderr, once it has ended; empty if there is none.
        self.last_words = ""
        self._process = _start(module, (), subprocess.PIPE, subprocess.PIPE, self._stderr, _PARENT)
        self._on_reply = on_reply
        self._reader = threading.Thread(target=self._read, name="perfkit helper's replies", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._stderr, self._process.stdout as stdout:
            while line := stdout.readline(_REPLY_BYTES):
                self._on_reply(line)
            self.last_words = _last_line(self._stderr)
        self._on_reply(None)

    def send(self, line: bytes) -> bool:
        """Write one line to the process; returns whether it was there to take it."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + b"\n")
            self._process.stdin.flush()
        except (OSError, ValueError):  # it has ended, or was closed
            return False
        return True

    def close(self, timeout_s: float) -> None:
        """Let it end: it finds the end of its stdin. After ``timeout_s`` it is killed."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            _wait(self._process, timeout_s)
        except subprocess.TimeoutExpired:
            _kill(self._process)
        self._reader.join(timeout_s)

    def kill(self) -> None:
        """End the process, if it has not ended yet."""
        _kill(self._process)
        self.close(_END_S)


def _start(
    module: str, arguments: Sequence[str], stdin: int, stdout: int | IO[bytes], stderr: IO[bytes], folder: Path
) -> subprocess.Popen[bytes]:
    global _started
    command = [sys.executable, "-m", module, *arguments]
    if (nice := shutil.which("nice")) is not None:
        command = [nice, "-n", "10", *command]
    try:
        process = subprocess.Popen(
            command,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd=folder,
            env={**os.environ, "PERFKIT_DISABLE": "1", "OMP_NUM_THREADS": "1"},
        )
    except OSError as error:
        raise BackgroundError(f"no process could be started: {error.strerror}") from error
    _started += 1
    _running.add(process)
    return process


def _poll(process: subprocess.Popen[bytes]) -> int | None:
    """The exit code, None while it runs; once it has ended, its processor time is kept."""
    global _ended_ns
    if process.returncode is not None:
        _running.discard(process)
        return process.returncode
    if sys.platform == "linux":
        # Until it is waited for, an ended process still has its clock.
        with suppress(ChildProcessError):  # somebody else has waited for it
            if os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
                return None
    spent_ns = _processor_ns(process)
    code = process.poll()
    if code is not None and process in _running:
        _running.discard(process)
        _ended_ns += spent_ns
    return code


def _wait(process: subprocess.Popen[bytes], timeout_s: float = math.inf) -> int:
    """Wait for the end of the process, and return its exit code."""
    end_s = time.monotonic() + timeout_s
    while (code := _poll(process)) is None:
        if time.monotonic() >= end_s:
            raise subprocess.TimeoutExpired(process.args, timeout_s)
        time.sleep(_POLL_S)
    return code


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End the process, if it has not ended yet, and wait for it."""
    if _poll(process) is None:  # first, because kill() would wait for one that has ended
        process.kill()
    _wait(process)


def _processor_ns(process: subprocess.Popen[bytes]) -> int:
    try:
        # The clock of another process (Linux: clock_getcpuclockid(3), whose formula this is).
        return time.clock_gettime_ns((~process.pid << 3) | 2) if sys.platform == "linux" else 0
    except OSError:
        return 0


def _last_line(file: IO[bytes]) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _ERROR_BYTES))
    text = file.read().decode(errors="replace").strip()
    return text.rsplit("\n", 1)[-1][:_ERROR_CHARACTERS]
