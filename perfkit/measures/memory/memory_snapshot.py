"""Memory of each device over the history of a memory snapshot of torch, and the lines that held it.

A snapshot contains what is allocated when it is taken and the last actions of the allocator, each with its Python
stack. So levels are counted backwards from the end.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from perfkit._code_owner import USER
from perfkit._location import Location
from perfkit.measures.memory._allocations import device_name
from perfkit.measures.memory._levels import MAX_HOLDERS, alive_at, timeline
from perfkit.measures.results.memory import MemoryHolder, MemorySnapshot
from perfkit.trace.intervals import Ints
from perfkit.trace.memory_snapshot import MemoryHistory

#: Actions that change how much is allocated: memory counts from its allocation until its free is requested.
CHANGES = {"alloc": 1, "free_requested": -1}


def measure_memory_snapshot(history: MemoryHistory) -> tuple[MemorySnapshot, ...]:
    """Memory of each device that the snapshot knows, largest peak first.

    Holders have a ``function``: ``file(line): name`` of the user's innermost frame, or of a library's where the stack
    has none of the user's; None without a stack. Steps are not in a snapshot.
    """
    devices = {segment.device for segment in history.segments} | set(np.unique(history.device).tolist())
    found = [_measure(history, device) for device in sorted(devices)]
    return tuple(sorted(found, key=lambda one: -one.peak_bytes))


def _measure(history: MemoryHistory, device: int) -> MemorySnapshot:
    signs = np.array([CHANGES.get(action, 0) for action in history.actions] or [0])
    sign = signs[history.action]
    rows = np.flatnonzero((history.device == device) & (sign != 0) & (history.bytes >= 0))
    change = sign[rows] * history.bytes[rows]
    now = sum(max(segment.allocated_bytes, 0) for segment in history.segments if segment.device == device)
    level = now - np.concatenate((np.cumsum(change[::-1])[::-1][1:], np.zeros(min(1, rows.size), np.int64)))
    first = int(level[0] - change[0]) if rows.size else now
    # The level before the first action may be the highest: nothing but frees were kept.
    peak = int(level.argmax()) if rows.size and level.max() >= first else -1
    peak_bytes = int(level[peak]) if peak >= 0 else first
    alive = rows[alive_at(peak, change, history.address[rows])]
    holders = _held(history, device, alive, rows[sign[rows] > 0])
    times = np.maximum.accumulate(history.time_ns[rows])
    is_timed = bool(rows.size) and bool((times >= 0).all())
    return MemorySnapshot(
        device=device_name(device),
        peak_bytes=peak_bytes,
        peak_ns=int(times[max(peak, 0)]) if is_timed else None,
        is_absolute=True,
        allocations=int((change > 0).sum()),
        frees=int((change < 0).sum()),
        held=holders[:MAX_HOLDERS],
        other_bytes=sum(one.bytes for one in holders[MAX_HOLDERS:]),
        before_bytes=peak_bytes - sum(one.bytes for one in holders),
        timeline=timeline(times, level, first, None, int(times[0]), int(times[-1])) if is_timed else None,
    )


def _held(history: MemoryHistory, device: int, alive: Ints, allocations: Ints) -> tuple[MemoryHolder, ...]:
    """What was held at the peak by the line that allocated it, largest first; both are rows of the history."""
    held: dict[str | None, list[int]] = defaultdict(list)
    names = [_line(stack) for stack in history.stacks]
    for row in alive.tolist():
        stack = int(history.stack[row])
        held[names[stack] if stack >= 0 else None].append(int(history.bytes[row]))
    allocated = set(history.address[allocations].tolist())
    for block in history.blocks:
        # Allocated before the history begins and there to its end: also at the peak.
        is_old = block.state == "active_allocated" and block.address not in allocated
        if is_old and history.segments[block.segment].device == device:
            held[names[block.stack] if block.stack >= 0 else None].append(block.bytes)
    found = [MemoryHolder(bytes=sum(sizes), allocations=len(sizes), function=name) for name, sizes in held.items()]
    return tuple(sorted(found, key=lambda one: -one.bytes))


def _line(stack: tuple[Location, ...]) -> str | None:
    """The innermost frame of the user's, else of a library's; stacks begin with the innermost."""
    frames = [frame for frame in stack if frame.file.endswith(".py") or frame.file.startswith("<i")]
    known = [frame for frame in frames if frame.owner == USER]
    known += [frame for frame in frames if frame.owner not in ("perfkit", "torch", "python")]
    return f"{known[0].file}({known[0].line}): {known[0].function}" if known else None
