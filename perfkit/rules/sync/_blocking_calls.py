"""The blocking calls of a trace that belong to the step, and which observed syncs can have made them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from perfkit._location import Location
from perfkit.ledger.step_budget import StepBudget
from perfkit.measures.results.host import SyncCall
from perfkit.run.records import SyncEvent, SyncKind

#: From one sync in two steps on, a line or call syncs in the step; logging every hundred steps does not.
IN_STEP = 0.5

#: Ops of a trace that read one value, and that copy between host and device.
_READS = frozenset(("aten::item", "aten::_local_scalar_dense", "aten::is_nonzero"))
_COPIES = frozenset(("aten::to", "aten::_to_copy", "aten::copy_", "aten::cpu", "aten::cuda", "aten::pin_memory"))
#: Observed syncs whose calls in a trace may be of any sort: a printed tensor is copied and read, a collective and code
#: without a name may do anything.
_ANY: frozenset[SyncKind] = frozenset(("print", "collective", "other"))


class BlockingCalls(NamedTuple):
    """Blocking calls of a trace under one op and range: ``syncs`` in all, ``blocked_ns`` per step of the budget.

    ``idle_ns`` and ``at`` are those of `SyncCall`, per step of the budget.
    """

    op: str | None
    range: str | None
    names: str
    syncs: int
    blocked_ns: float
    idle_ns: int | None
    at: Location | None

    def made_by(self, event: SyncEvent) -> bool:
        """Whether an observed sync can have made these calls; by its kind, because a trace knows no lines."""
        if event.kind in _ANY:
            return True
        if self.op is None:
            return event.kind == "explicit" or _copies_or_waits(self.names)
        if self.op in _READS:
            return event.kind == "read"
        if self.op in _COPIES:  # `.tolist()` reads by copying
            return event.kind in ("copy-h2d", "copy-d2h") or event.op.startswith("tolist")
        return event.kind != "explicit"


def blocking_calls(calls: Iterable[SyncCall], step: StepBudget) -> list[BlockingCalls]:
    """The blocking calls that belong to the step, by op and range, longest first."""
    steps = traced_steps(step)
    groups: dict[tuple[str | None, str, str | None], list[SyncCall]] = {}
    for call in calls:
        # Without an op, a copy still belongs to the cudaStreamSynchronize after it.
        alone = call.name if call.op is None and not _copies_or_waits(call.name) else ""
        groups.setdefault((call.op, alone, call.range), []).append(call)
    found = []
    for (op, _, in_range), group in groups.items():
        # `.item()` is a copy and a cudaStreamSynchronize after it: one sync, so not the sum of both.
        waits = sum(call.count for call in group if "Synchronize" in call.name)
        syncs = max(waits, sum(call.count for call in group) - waits)
        names = " and ".join(dict.fromkeys(call.name for call in group))
        blocked_ns = sum(call.blocked_ns for call in group) * step.trace_scale / steps
        longest = max(group, key=lambda call: call.blocked_ns)
        idle = [call.idle_ns for call in group if call.idle_ns is not None]
        idle_ns = step.of_device(sum(idle)) if idle else None
        found.append(BlockingCalls(op, in_range, names, syncs, blocked_ns, idle_ns, longest.at))
    # Fewer belong to the recording and not to the step: the profiler synchronizes the device once when it stops.
    minimum = IN_STEP * steps if step.per == "step" else 2
    return sorted((one for one in found if one.syncs >= minimum), key=lambda one: -one.blocked_ns)


def traced_steps(step: StepBudget) -> int:
    """The number of steps that counts of the trace are totals over."""
    return max(1, step.traced.steps) if step.traced is not None and step.per == "step" else 1


def _copies_or_waits(names: str) -> bool:
    """Whether API calls copy, or wait for a stream as a blocking copy does."""
    return "Memcpy" in names or "StreamSynchronize" in names
