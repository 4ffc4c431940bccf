"""Runs a tool with the user's program in it as if the program were run alone: terminal, signals and exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType

from perfkit.errors import UsageError

#: The signals with which a launcher or a user ends a program.
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_in_foreground(command: Sequence[str]) -> int:
    """Run a command in this terminal; its exit code, or 128 plus the number of the signal that ended it.

    Ctrl-C ends the program, not perfkit, which then reads what was recorded. A signal sent to perfkit alone is
    forwarded to all processes of the command.

    Raises:
        UsageError: the command cannot be started.
    """
    terminal = _in_terminal()
    process: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:
        if process is None:
            early.append(number)
        elif process.poll() is None and not (terminal and number == signal.SIGINT):
            if terminal:
                process.send_signal(number)
            else:
                # It may have ended in the meantime.
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, number)

    # Before the program starts: on a busy machine it may run long before this process runs again.
    before = {number: signal.signal(number, forward) for number in _SIGNALS}
    try:
        # A terminal sends Ctrl-C to the whole foreground process group, and only that group may read from it. Without
        # a terminal the program gets a group of its own, to which signals are forwarded.
        process = subprocess.Popen(command, start_new_session=not terminal)
        for number in early:
            forward(number, None)
        code = process.wait()
    except OSError as error:
        raise UsageError(f"{command[0]} cannot be started: {error.strerror or error}") from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


def _in_terminal() -> bool:
    """Whether the terminal sends Ctrl-C to this process."""
    for stream in (sys.__stdin__, sys.__stderr__, sys.__stdout__):
        try:
            if stream is not None and os.tcgetpgrp(stream.fileno()) == os.getpgrp():
                return True
        except (OSError, ValueError):
            continue
    return False
