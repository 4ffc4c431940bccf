"""The raw events of a period, kept next to the sums of the whole run, and the spans that they are decoded into."""

from __future__ import annotations

from array import array

from perfkit.ranges import range_objects
from perfkit.ranges.event_stream import VALUES_PER_RANGE, EventStream, SpanStream
from perfkit.run.records import RangeSpan


class _LoggedThread:
    """The events of one thread, and the state of its stream when the log began."""

    def __init__(self, name: str, stream: EventStream) -> None:
        self.name = name
        self.stream = SpanStream(stream)
        self.values = array("q")
        self.lost = 0


class EventLog:
    """Everything that the recorder reads between `RangeRecorder.start_log` and `RangeRecorder.stop_log`.

    Keeping events costs a copy. Decoding them is left to `spans`, which any thread may call after `stop_log`.

    Args:
        max_spans: ranges that are kept; further ones are counted.
        dropped: `RangeRecorder.dropped` when the log begins.
    """

    def __init__(self, max_spans: int, dropped: int = 0) -> None:
        self.dropped = -dropped
        self._threads: dict[EventStream, _LoggedThread] = {}
        self._free_values = max_spans * VALUES_PER_RANGE

    def thread(self, name: str, stream: EventStream) -> _LoggedThread:
        """The log of the thread with this stream; it begins where the stream stands at the first call."""
        if stream not in self._threads:
            self._threads[stream] = _LoggedThread(name, stream)
        return self._threads[stream]

    def keep(self, name: str, stream: EventStream, values: list[int]) -> None:
        """Keep values that ``stream`` is about to read, as many as fit."""
        thread = self.thread(name, stream)
        kept = values[: self._free_values]
        self._free_values -= len(kept)
        thread.values.extend(kept)
        thread.lost += len(values) - len(kept)

    def spans(self) -> tuple[list[RangeSpan], int]:
        """The spans in order of their begin, and the number of ranges that are not among them.

        A range that is still open has no end. Where values did not fit it is left out, for it may have ended.
        """
        rows: list[RangeSpan] = []
        dropped = self.dropped
        for thread in self._threads.values():
            stream = thread.stream
            stream.read(thread.values)
            spans: list[tuple[int, int, int | None, int]] = [*stream.spans]
            if thread.lost:
                dropped += -(-thread.lost // VALUES_PER_RANGE) + len(stream.opened)
            else:
                spans += [(one.number, one.begin_ns, None, one.depth) for one in stream.opened]
            dropped += stream.dropped
            rows += [_row(thread.name, *span) for span in spans]
        return sorted(rows, key=lambda row: row.start_ns), dropped


def _row(thread: str, number: int, begin_ns: int, end_ns: int | None, depth: int) -> RangeSpan:
    made = range_objects.by_number(number)
    return RangeSpan(
        name=made.name,
        category=made.category or "",
        domain=made.domain,
        thread=thread,
        start_ns=begin_ns,
        end_ns=end_ns,
        depth=depth,
    )
