"""Listener: perfkit's own recorder, which appends to a list per thread.

A begin appends the range's number and the time, an end the complement of the number and the time (`event_stream` reads
them). This module imports neither numpy nor msgspec: a program that only marks ranges loads only this part.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from perfkit.ranges import dynamo, listeners
from perfkit.ranges.listeners import DENSE, RECORDER, Form

if TYPE_CHECKING:
    from perfkit.ranges.recorder import RangeRecorder

#: Values in a thread's list at which the thread drains it: 10 ms of work, once in 65,000 ranges.
LIMIT = 1 << 18

_GET_LIST = """\
try:
    {kept} = {tls}.buffer
except AttributeError:
    {kept} = {new_buffer}()
"""
_CHECK_LENGTH = """\
if {len}({kept}) > {limit}:
    {kept} = {full}()
"""


def unread_list() -> list[int]:
    """A list that nobody reads, for a thread that has none while no recorder runs."""
    return []


class RecorderListener(listeners.RangeListener):
    """Writes begins and ends for one `RangeRecorder` at a time."""

    bit = RECORDER
    calls = {
        # `tls.buffer` is the list of the running thread, `new_buffer` makes it, `full` makes room in it.
        "tls": threading.local(),
        "new_buffer": unread_list,
        "full": unread_list,
        "limit": LIMIT,
        "clock": time.perf_counter_ns,
        # Here, because a user's module may define its own.
        "len": len,
    }
    #: The recorder that runs.
    recorder: RangeRecorder | None = None

    def code(self, form: Form, mode: int) -> tuple[str, str]:
        """Append to the list of the thread, which the end finds again where it cannot be kept."""
        begin = _GET_LIST + (_CHECK_LENGTH if mode & DENSE else "")
        end = _GET_LIST if form in ("with", "payload") else ""
        if form == "overlapping":
            # One call, which the other thread's own events cannot split.
            event = "{{kept}}.extend(({}, {{clock}}()))"
        else:
            event = "{{kept}}.append({})\n{{kept}}.append({{clock}}())"
        return begin + event.format("{number}"), end + event.format("{inverse}")

    def start(self, recorder: RangeRecorder) -> None:
        """Write to this recorder's lists from now on.

        Each recorder has lists of its own: a range that is open when the recorder stops ends in that recorder's list.
        """
        self.recorder = recorder
        self.connect(tls=recorder.tls, new_buffer=recorder.new_buffer, full=recorder.full, limit=LIMIT)
        listeners.switch(RECORDER, True)

    def stop(self) -> None:
        """Write nothing from now on."""
        self.recorder = None
        listeners.switch(RECORDER | DENSE, False)
        self.connect(new_buffer=unread_list, full=unread_list)


LISTENER = RecorderListener()
dynamo.leave_alone(unread_list.__code__)
