"""The verdicts on a run, from a helper process: the first one during training, the final one when the run is over."""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from perfkit._background import BackgroundError, BackgroundHelper
from perfkit._stderr import print_message, write_beside_bars
from perfkit.run.verdict_messages import HELPER, VerdictReply, VerdictRequest, Wanted

#: The diagnosis of a large window takes some seconds of a core; after this long, something is wrong.
_TIMEOUT_S = 600.0
#: Seconds for the end of a helper that has nothing left to do.
_END_S = 5.0


class VerdictProcess:
    """Diagnoses the run in ``folder``, while it is written and at its end, in a process that is started when needed."""

    def __init__(self, folder: Path) -> None:
        # The program may change its current folder.
        self._folder = os.path.abspath(folder)
        self._helper: BackgroundHelper | None = None
        #: The largest resident memory of a helper; None: not known.
        self.peak_bytes: int | None = None
        self._replies: queue.SimpleQueue[VerdictReply | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._over = False

    def print_soon(self, until_written: Callable[[], None]) -> None:
        """Print the first verdict when it is ready; ``until_written`` waits for the files of the window's threads."""
        threading.Thread(target=self._print, args=(until_written,), name="perfkit first verdict", daemon=True).start()

    def _print(self, until_written: Callable[[], None]) -> None:
        # An error here is harmless: the full verdict comes at the end of the run.
        with suppress(BackgroundError):
            until_written()
            with self._lock:
                if not self._over:
                    self._ask("early")

    def end_early(self) -> None:
        """The run is over: its final verdict replaces the first one."""
        self._over = True

    def final(self) -> VerdictReply:
        """The verdict on the whole run, as text for stderr.

        Raises:
            BackgroundError: no helper gives one.
        """
        return self._result("final")

    def draw(self) -> VerdictReply:
        """Have the data of the pages written, after `final`; the helper ends.

        Raises:
            BackgroundError: the helper has failed.
        """
        reply = self._result("figures")
        with self._lock:
            helper, self._helper = self._helper, None
        if helper is not None:
            helper.close(_END_S)
        return reply

    def print_final(self, notes: Sequence[str], *, quiet: bool) -> None:
        """Print the verdict on the whole run, and have the data of its pages written.

        ``notes`` are printed where the folder holds nothing that a verdict could be about; with ``quiet`` nothing is.

        Raises:
            BackgroundError: no helper gives one.
        """
        final = self.final()
        if final.problem is not None:
            for text in notes if final.unreadable else [f"the diagnosis: {final.problem}"]:
                print_message(text)
            return
        if not quiet:
            write_beside_bars(final.text)
        if (problem := self.draw().problem) is not None:
            print_message(f"the figures: {problem}")

    def cancel(self) -> None:
        """End the helper, if one runs, whatever it is doing."""
        self._over = True
        with self._lock:
            helper, self._helper = self._helper, None
        if helper is not None:
            helper.kill()

    def _result(self, wanted: Wanted) -> VerdictReply:
        # Twice: the helper of the first verdict may have ended meanwhile, or been killed to free its memory.
        for _ in range(2):
            with self._lock:
                helper = self._ask(wanted)
            try:
                reply = self._replies.get(timeout=_TIMEOUT_S)
            except queue.Empty:
                helper.kill()
                raise BackgroundError(f"it took longer than {_TIMEOUT_S:.0f} s") from None
            except BaseException:  # the user does not want to wait
                helper.kill()
                raise
            if reply is not None:
                return reply
            # It has ended, or will; a request that it took meanwhile is lost.
            with self._lock:
                self._helper = None
            helper.kill()
        raise BackgroundError(helper.last_words or "the process that diagnoses was ended from outside")

    def _ask(self, wanted: Wanted) -> BackgroundHelper:
        request = msgspec.json.encode(
            VerdictRequest(
                wanted=wanted,
                folder=self._folder,
                current=os.getcwd(),
                columns=_columns(),
                terminal=_is_terminal(),
                encoding=getattr(sys.stderr, "encoding", None) or "utf-8",
            )
        )
        if self._helper is None or not self._helper.send(request):
            if self._helper is not None:
                self._helper.kill()  # it has ended, and is still to be waited for
            replies: queue.SimpleQueue[VerdictReply | None] = queue.SimpleQueue()
            self._replies = replies
            self._helper = BackgroundHelper(HELPER, lambda line: self._take(replies, line))
            self._helper.send(request)
        return self._helper

    def _take(self, replies: queue.SimpleQueue[VerdictReply | None], line: bytes | None) -> None:
        """In the thread that reads what a helper writes."""
        reply = None
        if line is not None:
            with suppress(msgspec.DecodeError, UnicodeDecodeError):
                reply = msgspec.json.decode(line, type=VerdictReply)
        if reply is not None:
            self.peak_bytes = max(self.peak_bytes or 0, reply.peak_bytes or 0) or None
        if reply is None or reply.wanted != "early":
            replies.put(reply)
        elif not self._over and reply.problem is None:
            write_beside_bars(f"{reply.text}\n")


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # there is none, or it is closed
        return False


def _columns() -> int:
    """The width of the terminal, as rich finds it: of the first of stdin, stdout and stderr that is one."""
    if (named := os.environ.get("COLUMNS", "")).isdecimal() and int(named):
        return int(named)
    for file in range(3):
        with suppress(OSError):
            if (columns := os.get_terminal_size(file).columns) > 0:
                return columns
    return 80
