"""Runs a tool with the user's program in it, as if the program had been started alone: signals and exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType

from perfkit.errors import UsageError

#: What a launcher or a person ends a program with.
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_command(command: Sequence[str]) -> int:
    """Run a command with this terminal; its exit code, 128 and the signal's number where it died of one.

    Ctrl-C ends the program, not perfkit, which then reads what was recorded until then. A signal sent to perfkit
    alone is passed on to all that was started.

    Raises:
        UsageError: it cannot be started.
    """
    terminal = _in_terminal()
    process: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        if process is None:
            early.append(number)
        elif process.poll() is None and not (terminal and number == signal.SIGINT):
            if terminal:
                process.send_signal(number)
            else:
                # It may have ended just now.
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, number)

    # Before the program starts: on a busy machine it may be far on before this process runs again.
    before = {number: signal.signal(number, pass_on) for number in _SIGNALS}
    try:
        # A terminal sends Ctrl-C to all of the group that is in front, and only that group may read from it. Elsewhere
        # the program gets a group of its own, which a signal is sent to.
        process = subprocess.Popen(command, start_new_session=not terminal)
        for number in early:
            pass_on(number, None)
        code = process.wait()
    except OSError as error:
        raise UsageError(f"{command[0]} cannot be started: {error.strerror or error}") from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


def _in_terminal() -> bool:
    """Whether this process is one of those that the terminal sends Ctrl-C to."""
    for stream in (sys.__stdin__, sys.__stderr__, sys.__stdout__):
        try:
            if stream is not None and os.tcgetpgrp(stream.fileno()) == os.getpgrp():
                return True
        except (OSError, ValueError):
            continue
    return False
