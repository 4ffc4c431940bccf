"""Numbers of the host: ops, ranges, source lines, blocking calls, and work outside of ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import msgspec

from perfkit._location import Location
from perfkit.measures.results.memory import MemoryChange
from perfkit.run.records import Phase


class OpTime(msgspec.Struct, frozen=True, kw_only=True):
    """One op by name; sums over its calls.

    ``self_ns`` is host time not spent in ops it called; ``device_ns`` the device work launched inside it,
    ``device_self_ns`` that which no op it called launched. ``backward_ns`` and ``backward_device_ns`` are the host time
    of the autograd nodes that it made, and the device work launched in them; None where none could be paired.
    ``memory`` is by device (``cpu``, ``cuda:0``), None without memory events. ``median_ns``, ``min_ns``, ``max_ns`` and
    ``deviation_ns`` (of a sample) are of a call's host time with the ops that it called. ``share`` (0 to 1) is the part
    that ``self_ns`` has of the time in any op.
    """

    name: str
    count: int
    total_ns: int
    self_ns: int
    device_ns: int | None = None
    device_self_ns: int | None = None
    backward_ns: int | None = None
    backward_device_ns: int | None = None
    memory: dict[str, MemoryChange] | None = None
    median_ns: int | None = None
    min_ns: int | None = None
    max_ns: int | None = None
    deviation_ns: float | None = None
    share: float | None = None


class Repeat(msgspec.Struct, frozen=True, kw_only=True):
    """A run of ops that repeats: a loop in Python that calls the same few ops again and again.

    ``names`` is one iteration's top-level ops; ``iterations`` and the times are means per step.
    ``host_ns`` spans first op to last on the host, Python between them included; ``op_ns`` is the
    part inside ops; ``device_ns`` the device time launched; ``backward_ns`` the backward nodes of
    those ops (paired by sequence number), None where they could not be paired. ``range`` is the innermost range
    that most of its ops run in; ``function`` the user's Python frame, as the trace names it, where it has stacks.
    """

    names: tuple[str, ...]
    iterations: float
    ops: float
    host_ns: int
    op_ns: int
    device_ns: int | None = None
    backward_ns: int | None = None
    range: str | None = None
    function: str | None = None


class Ops(msgspec.Struct, frozen=True, kw_only=True):
    """Host ops of a trace.

    ``floor_ns`` is what one op costs on this host when it has next to nothing to compute (the 10th
    percentile of the leaf ops' own time): the overhead that many small ops pay each.
    """

    AVAILABLE_FROM: ClassVar[str] = "a trace with ops"

    steps: int
    count: int
    wall_ns: int
    rows: tuple[OpTime, ...]
    floor_ns: int | None
    repeats: tuple[Repeat, ...] = ()


class RangeTime(msgspec.Struct, frozen=True, kw_only=True):
    """One range by name.

    ``host_ns`` sums its durations; ``self_ns`` leaves out ranges inside it on its thread. ``device_busy_ns`` is the
    union of the device work launched inside it, ``device_self_busy_ns`` of that which no range inside it launched.
    ``backward_ns`` is the time of the autograd nodes that its ops made, ``backward_device_busy_ns`` the union of the
    device work launched in them: for a range around the backward as well, a part of ``device_busy_ns``. None where
    none could be paired. ``memory`` is by device, None without memory events. ``median_ns``, ``min_ns``, ``max_ns`` and
    ``deviation_ns`` (of a sample) are of one range's host time. ``device_work`` counts the kernels, copies and memsets
    launched inside, and ``projected_ns`` sums, over the ranges, the time from the start of the first to the end of the
    last of them: the range as the device sees it.

    ``source`` is "trace" for the ranges that began in a step of the trace (all, where it has no steps), "recording" for
    a name whose ranges all began outside of steps (around the loop, or before it), else the file of the run.
    """

    AVAILABLE_FROM: ClassVar[str] = "a trace with ranges"

    name: str
    count: int
    host_ns: int
    self_ns: int | None = None
    device_busy_ns: int | None = None
    device_self_busy_ns: int | None = None
    backward_ns: int | None = None
    backward_device_busy_ns: int | None = None
    memory: dict[str, MemoryChange] | None = None
    source: str = ""
    median_ns: int | None = None
    min_ns: int | None = None
    max_ns: int | None = None
    deviation_ns: float | None = None
    device_work: int | None = None
    projected_ns: int | None = None


def distinct_ranges(ranges: Sequence[RangeTime]) -> list[RangeTime]:
    """Each range once: from the trace if it is in there, because the run's own table includes slowed steps."""
    of_trace = ("trace", "recording")
    traced = {row.name for row in ranges if row.source in of_trace}
    return [row for row in ranges if row.source in of_trace or row.name not in traced]


class SyncCall(msgspec.Struct, frozen=True, kw_only=True):
    """Blocking API calls in a trace (``cudaStreamSynchronize``, ``cudaMemcpy``...) under one user op.

    ``idle_ns`` is how long the device was idle because of them: in such a call, and from it to the next launch as far
    as the host would have been ahead without it; None without device work. ``at`` is the function of the user's that
    makes most of them, where stacks were recorded.
    """

    name: str
    op: str | None
    range: str | None
    count: int
    blocked_ns: int
    idle_ns: int | None = None
    at: Location | None = None


class SourceLine(Location, frozen=True, kw_only=True):
    """What one user line did; where ``line`` is None, what a function did on lines that are not known.

    ``first_line`` is where the function begins. ``self_ns`` is host time in the line with the ops and libraries it
    called, ``total_ns`` with the user's functions that it called. ``ops`` are the ops it called itself (not those that
    ops called), ``op_ns`` the host time in them, ``following_ns`` what following lines added to ``self_ns``.

    ``launches`` and ``device_ns`` are the device work that it put on a stream, ``syncs`` the calls in which it waited
    for the device, for ``blocked_ns``; these four are None in a trace without device work. ``allocations`` and
    ``allocated_bytes`` are None without memory events.

    ``backward_ns`` is host time of the autograd nodes that its ops made, ``backward_launches`` and
    ``backward_device_ns`` what they put on a stream: they are no part of the other numbers of this line.
    """

    first_line: int
    function: str
    self_ns: int = 0
    total_ns: int = 0
    ops: int = 0
    op_ns: int = 0
    following_ns: int = 0
    launches: int | None = None
    device_ns: int | None = None
    syncs: int | None = None
    blocked_ns: int | None = None
    backward_ns: int | None = None
    backward_launches: int | None = None
    backward_device_ns: int | None = None
    allocations: int | None = None
    allocated_bytes: int | None = None

    @property
    def python_ns(self) -> int:
        """Its own time outside of ops, as it would be if nothing followed lines."""
        return max(0, self.self_ns - self.op_ns - self.following_ns)


class SourceLines(msgspec.Struct, frozen=True, kw_only=True):
    """The user's lines in the step for lines, longest ``total_ns`` first.

    Following lines makes a step slower: its times show where, and how lines compare, not how long. Of all ops,
    ``exact`` is the share (0 to 1) whose line is known, ``function_only`` that of which only the function is known; the
    rest ran in no Python of the user's or of a library's. In a step of very many lines those at its end are not known:
    it is not ``complete``.
    """

    source: str
    steps: int
    wall_ns: int
    exact: float
    function_only: float
    lines: tuple[SourceLine, ...]
    complete: bool = True


HostKind = Literal["preprocessing", "python", "logging", "metrics", "checkpoint", "waiting"]


class HostLine(Location, frozen=True, kw_only=True):
    """One user line's part of a `HostWork`: sampled time per step, its libraries, and its caller.

    ``waits_for`` is the expression in which the line was seen waiting, "" where it was not or none is known.
    ``before_model`` is whether the line runs before the model in its step, and in no phase of its own: then ``phase``
    is "other", also where the step clock had it as forward.
    """

    line: int
    function: str
    phase: Phase
    samples: int
    host_ns: int
    within: str = ""
    called_from: Location | None = None
    waits_for: str = ""
    before_model: bool = False


class HostWork(msgspec.Struct, frozen=True, kw_only=True):
    """Host time of one kind per step that runs in no op of torch's: in the user's lines, outside of fetches.

    ``preprocessing`` makes the model's inputs (it runs before the model in its step, or in a library that decodes,
    tokenizes or reads); ``python`` is all other code of the user's; ``logging``, ``metrics`` (their ops included) and
    ``checkpoint`` are known by the libraries they are in. ``waiting`` is what neither of those is and uses no
    processor: a sleep, a lock, a socket, a file, another process. Garbage collections are part of none. ``lines`` are
    the hottest function's first, within each function by samples and the traced step together; ``samples`` and
    ``host_ns`` of the lines sum to those of the work. ``total_samples`` are all of the training thread. Where these are
    too few, the work is that of the step for lines: it is ``followed``, and has no samples.
    """

    AVAILABLE_FROM: ClassVar[str] = "samples of source lines: perfkit run, or perfkit.profile"

    kind: HostKind
    samples: int
    total_samples: int
    host_ns: int
    lines: tuple[HostLine, ...]
    followed: bool = False
