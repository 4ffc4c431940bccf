"""What torch.compile did: graphs compiled per step and their time, recompilations with their reason, graph breaks.

Read from Dynamo's own counters and records, and only if the program has loaded Dynamo. They are private; without them
everything here is None or empty.
"""

from __future__ import annotations

import re
import sys
from typing import Any, cast

import msgspec

from perfkit._code_owner import USER, owner_of
from perfkit._location import Location
from perfkit.ranges.dynamo import OWN_BREAK
from perfkit.run.records import Compilation, GraphBreak

#: Reasons for graph breaks that are kept, the most frequent first: there may be many, and they are long.
_MAX_REASONS = 20
#: Functions whose compilations are kept; a program compiles a model and its loss.
_MAX_FUNCTIONS = 64
#: A frame of the stack that Dynamo records with a compilation.
_FRAME = re.compile(r"^Line: (\d+), Name: (.*), Filename: (.*)$", re.DOTALL)

#: The end of a guard: ``self.calls == 58  # self.calls += 1  # project/train.py:29 in forward (HINT ...)``.
_QUOTED = re.compile(r"# (\S+\.py):(\d+) in (\w+)")


def _dynamo(name: str) -> Any:
    """An attribute of Dynamo's utilities; None where Dynamo is not in use or does not have it."""
    return getattr(sys.modules.get("torch._dynamo.utils"), name, None)


def compiled_graphs() -> int | None:
    """Graphs compiled in this process so far; None where Dynamo is not in use."""
    counters = _dynamo("counters")
    return int(counters["stats"]["unique_graphs"]) if counters is not None else None


class CompileCounter:
    """Counts compiled graphs, and the time they took, from step to step."""

    def __init__(self) -> None:
        self._counters = _dynamo("counters")
        self._graphs = compiled_graphs() or 0
        # What was compiled before is not part of this run.
        self._last: Any = next(reversed(_dynamo("_compilation_metrics") or ()), None)
        self._new: dict[int, tuple[int, int]] = {}
        self._functions: dict[tuple[str, Location | None], Compilation] = {}

    @property
    def compilations(self) -> tuple[Compilation, ...]:
        """What was compiled, the longest first."""
        return tuple(sorted(self._functions.values(), key=lambda one: -one.total_ns))

    def at_close(self, step: int) -> None:
        """Check whether graphs were compiled in ``step``, which ends now; called for every step."""
        counters = self._counters
        if counters is None:
            counters = self._counters = _dynamo("counters")
            if counters is None:
                return
        now = counters["stats"].get("unique_graphs", 0)  # not [...]: for a missing key, that calls Python code
        if now != self._graphs:
            # The program may reset Dynamo and its counters.
            self._new[step] = max(0, now - self._graphs), self._take_records()
            self._graphs = now

    def take(self) -> dict[int, tuple[int, int]] | None:
        """Step -> its compiled graphs and their ns, since the last call; None where Dynamo is not in use."""
        new, self._new = self._new, {}
        return new if self._counters is not None else None

    def _take_records(self) -> int:
        """Keep what Dynamo recorded since the last time; returns the ns that it took."""
        records = list(_dynamo("_compilation_metrics") or ())
        # By identity: Dynamo keeps the last 64, and may have dropped those seen before.
        seen = next((index for index, one in enumerate(records) if one is self._last), -1)
        self._last = records[-1] if records else None
        return sum(map(self._keep, records[seen + 1 :]))

    def _keep(self, record: Any) -> int:
        # It imports torch, which a command that only names the triggers must not load.
        from perfkit.record.hooks.constructions import compiled_at

        took_ns = round((getattr(record, "entire_frame_compile_time_s", None) or 0) * 1e9)
        key = name, caller = str(getattr(record, "co_name", None) or "?"), _caller(record)
        if key in self._functions or len(self._functions) < _MAX_FUNCTIONS:
            reason = _reason(record)
            known = self._functions.get(key) or Compilation(
                compiled=name,
                called_from=caller,
                count=0,
                recompiles=0,
                total_ns=0,
                compiled_at=compiled_at(getattr(record, "co_filename", None), getattr(record, "co_firstlineno", None)),
            )
            self._functions[key] = msgspec.structs.replace(
                known,
                count=known.count + 1,
                recompiles=known.recompiles + (reason is not None),
                total_ns=known.total_ns + took_ns,
                reason=_short(reason) if reason is not None else known.reason,
                guarded_at=_guarded(reason, record) if reason is not None else known.guarded_at,
            )
        return took_ns


def _reason(record: Any) -> str | None:
    """Why the function was compiled again; None where it was compiled for the first time."""
    if hasattr(record, "recompile_reason"):
        return cast("str | None", record.recompile_reason)
    # Before torch 2.7: the compilations of this code that were kept already.
    return "this torch does not say why" if getattr(record, "cache_size", None) else None


def _caller(record: Any) -> Location | None:
    """The user's line that called the compiled function; the function's own line where no user's line did."""
    frames = [_FRAME.match(str(frame)) for frame in getattr(record, "stack_trace", None) or ()]
    # The last frame is the compiled function.
    for frame in reversed(frames[:-1]):
        if frame is not None and owner_of(frame[3]) == USER:
            return Location(file=frame[3], line=int(frame[1]), function=frame[2])
    if (file := getattr(record, "co_filename", None)) is None:
        return None
    line, function = getattr(record, "co_firstlineno", None), getattr(record, "co_name", None)
    return Location(file=file, line=line, function=function)


def _guarded(reason: str, record: Any) -> Location | None:
    """The line that Dynamo quotes with a guard; it cuts the path of the file at its front.

    It is a file of the compiled function or of one that calls it: a compiled module is called through torch's code.
    """
    quoted = _QUOTED.search(str(reason).strip().split("\n")[0])
    if quoted is None:
        return None
    frames = [_FRAME.match(str(frame)) for frame in getattr(record, "stack_trace", None) or ()]
    files = [str(getattr(record, "co_filename", "")), *(frame[3] for frame in frames if frame is not None)]
    file = next((one for one in files if one.endswith(quoted[1])), None)
    return Location(file=file, line=int(quoted[2]), function=quoted[3]) if file is not None else None


def _short(reason: str) -> str:
    """``0/3: L['x'].size()[0] == 5  # code  # train.py:8 in forward (HINT ...)`` without number, hint and stack."""
    first = re.sub(r"^\d+/\d+: ", "", str(reason).strip().split("\n")[0])
    return re.sub(r"\s+", " ", first.partition(" (HINT:")[0]).strip()[:300]


def graph_breaks() -> dict[str, int]:
    """Reason -> how often Dynamo broke a graph for it, in this process so far."""
    counters = _dynamo("counters")
    if counters is None:
        return {}
    breaks = ((reason, count) for reason, count in counters["graph_break"].items() if OWN_BREAK not in str(reason))
    found = sorted(breaks, key=lambda item: -item[1])[:_MAX_REASONS]
    return {str(reason)[:500]: int(count) for reason, count in found}


def break_lines() -> tuple[GraphBreak, ...]:
    """The user's lines at which Dynamo broke graphs, the most frequent first."""
    found: dict[tuple[str, int], GraphBreak] = {}
    for one in list(_dynamo("graph_break_reasons") or ()):
        frames = [frame for frame in getattr(one, "user_stack", ()) if owner_of(frame.filename) == USER]
        if not frames or OWN_BREAK in str(one.reason):
            continue
        at = frames[-1]
        known = found.get((at.filename, at.lineno))
        found[at.filename, at.lineno] = GraphBreak(
            reason=str(one.reason).split("\n")[0][:300],
            file=at.filename,
            line=at.lineno,
            function=at.name,
            count=known.count + 1 if known is not None else 1,
        )
    return tuple(sorted(found.values(), key=lambda each: -each.count)[:_MAX_REASONS])
