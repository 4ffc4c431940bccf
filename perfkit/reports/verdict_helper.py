"""``python -m perfkit.reports.verdict_helper``: diagnoses a run for the process that records it.

It takes requests on stdin and answers on stdout (`perfkit.run.verdict_messages`). So the diagnosis, which needs numpy
and as much memory as a small program, is never loaded where training happens, and is loaded once for the first and the
final verdict of a short run.
"""

from __future__ import annotations

import io
import os
import queue
import re
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path

import msgspec

from perfkit.diagnosis import Diagnosis, diagnose
from perfkit.errors import PerfkitError, RunError
from perfkit.measures.gathering import measure
from perfkit.reports.console import console_for
from perfkit.reports.run_verdict import diagnose_run, draw_run
from perfkit.reports.terminal import print_first_verdict
from perfkit.run.verdict_messages import VerdictReply, VerdictRequest
from perfkit.trace.cached_reader import CachedTraceReader

#: Seconds for which it waits for the next request: of a program that goes on for longer than this after its first
#: verdict, the 50 MB of the diagnosis cost more than loading it a second time.
_IDLE_S = 60.0
#: Events of traces that are kept from the first verdict to the final one, at 66 bytes each: a tenth of what the helper
#: takes anyway.
_KEPT_EVENTS = 100_000


class _Helper:
    """Answers requests; what a verdict was made from is kept for the next one and for its figures."""

    def __init__(self) -> None:
        self._final: Diagnosis | None = None
        self._reader = CachedTraceReader()

    def answer(self, request: VerdictRequest) -> VerdictReply:
        """Do what is wanted; an error is a part of the reply."""
        text, problem, unreadable = "", None, False
        try:
            with suppress(OSError):
                os.chdir(request.current)
            text = self._draw(request) if request.wanted == "figures" else self._verdict(request)
        except Exception as error:  # noqa: BLE001 - the process that records reports it
            problem = str(error) if isinstance(error, PerfkitError) else f"{type(error).__name__}: {error}"
            unreadable = isinstance(error, RunError)
        return VerdictReply(
            wanted=request.wanted,
            text=text,
            problem=problem,
            unreadable=unreadable,
            peak_bytes=_peak_bytes(),
        )

    def _verdict(self, request: VerdictRequest) -> str:
        written = io.BytesIO()
        file = io.TextIOWrapper(written, encoding=request.encoding, errors="replace", newline="\n")
        console = console_for(file, columns=request.columns, terminal=request.terminal)
        if request.wanted == "final":
            self._final = diagnose_run(Path(request.folder), console, read=self._reader)
        else:
            print_first_verdict(diagnose(measure(request.folder, read=self._reader)), console)
            if self._reader.events > _KEPT_EVENTS:
                self._reader = CachedTraceReader()
        file.flush()
        return written.getvalue().decode(request.encoding)

    def _draw(self, request: VerdictRequest) -> str:
        """Write the data of the pages, after the verdict, which the user waits for."""
        if self._final is not None:
            draw_run(self._final, Path(request.folder), read=self._reader)
            self._final, self._reader = None, CachedTraceReader()
        return ""


def _peak_bytes() -> int | None:
    """The largest resident memory. Not getrusage: its figure begins with the memory of the process that started it."""
    try:
        found = re.search(r"^VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    except OSError:  # not Linux
        return None
    return int(found[1]) * 1024 if found else None


def main() -> None:
    """Answer requests until stdin ends, or none comes for `_IDLE_S`."""
    # Ctrl-C in a terminal reaches the helper too; the verdict on the program that it ends is still wanted.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin.buffer:
            lines.put(line)
        lines.put(b"")

    threading.Thread(target=read, daemon=True).start()
    helper = _Helper()
    with suppress(queue.Empty):
        while line := lines.get(timeout=_IDLE_S):
            # A newer request replaces one that has not begun: the run is over.
            while not lines.empty() and (newer := lines.get()):
                line = newer
            reply = helper.answer(msgspec.json.decode(line, type=VerdictRequest))
            sys.stdout.buffer.write(msgspec.json.encode(reply) + b"\n")
            sys.stdout.buffer.flush()
    # Nothing is left to be done, and the interpreter's own end takes as long as an early verdict.
    os._exit(0)


if __name__ == "__main__":
    main()
