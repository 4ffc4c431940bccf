"""The host waits for the device inside the step.

Problem: at a sync the host waits until the device has done all queued work. Nothing new is queued meanwhile, so after
each sync the device is idle until the host has launched the next kernels.

How it shows: `perfkit.detect_syncs` reports the line and how often it synced; a trace shows the blocking call
(cudaStreamSynchronize, cudaMemcpy, aten::item) and how long it blocked. On a CPU nothing waits: a dry run finds and
counts the lines that would wait on a GPU, which is information there. What they cost on the CPU is what they compute,
where that takes 5% of the step: a check for NaN reads a whole tensor.

Causes: `.item()`, `float(loss)`, `.cpu()`, `.tolist()`, `print(loss)`, `if tensor:`, boolean-mask indexing,
`nonzero()`, copies of pageable memory, `torch.cuda.synchronize()` left over from timing.

Fix: keep values on the device and read them rarely.

    total += loss.detach()                    # not: total += loss.item()
    if step % 100 == 0:
        log(total.item() / 100)

    x = torch.where(mask, x, 0)               # not: x[~mask] = 0 with x[mask] read back
    batch = batch.to(device, non_blocking=True)   # from pinned memory

Saving: at most the time that the device was idle because of the syncs: inside them, and from each to the next launch as
far as the host would have been ahead without it, which is no more than it blocked. At least half of that; at most the
copies to the host, too, which are not made then. Where the line computes on the host with what it read, at most the
sampled time of the line in which the device is idle. On a CPU at most the sampled time of the line without the layers
that it calls. Of a condition at least three quarters of that, because it can be checked less often; of a check inside
torch (validate_args) half of that function's time; of another value nothing, because the program may need it.

A line syncs in the step from one sync in two steps on. Rarer lines are reported together as information, because
logging every hundred steps is what the fix above does; so is a line that synced in one of several observed steps, which
may have been the last of an epoch.

With both lines and a trace, each sync is reported once: blocking calls are attributed to a line where only that line
can have made them, and reported by themselves where no line can have. A blocking copy and the wait after it are one
sync. Calls that block for less than 1% of the step are left out.

Source: CUDA's rules for synchronous calls, and PyTorch's sync debug mode. On an H200 the argmax in NumPy of logits that
were copied in each step was 39% of it, and 35% were saved on the device.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from perfkit._format import ms, times
from perfkit.findings import Evidence, Finding, Severity
from perfkit.ledger.rows import LATE, Selector
from perfkit.ledger.step_budget import NEGLIGIBLE, StepBudget
from perfkit.measures.results.device import DeviceTime
from perfkit.measures.results.host import SyncCall
from perfkit.measures.sample_counts import MIN_SAMPLES
from perfkit.rules._host_work import LESS_OFTEN, samples_of_reads
from perfkit.rules._places import helper_call
from perfkit.rules.sync._blocking_calls import IN_STEP, BlockingCalls, blocking_calls, traced_steps
from perfkit.run.records import Lines, SyncEvent, Syncs

ID = "sync-in-step"
#: Where the line computes with what it reads, the host is late without the wait, too.
_COMPUTES = (
    "Do on the device what the line computes, and read the result rarely, every 100 steps or at the end of the epoch."
)
WHAT_IF = {"": ("sync", None), _COMPUTES: None}
CLAIMS = (Selector(owner="idle", names=("sync",)), LATE, Selector(owner="copies"))
#: Dynamo cannot trace the read of a value; what is computed for a log is that before it is a sync.
FOLLOWS_AT_LINE = ("graph-breaks", "logging-in-step")

#: Calls of a trace that block for less than this share of the step are left out.
_MIN_SHARE = 0.01
#: The share of the device's idle time that is saved at least (chosen): some values are needed, if later in the step.
_LOW = 0.5
_ADVICE = "Keep the value on the device and read it rarely, every 100 steps or at the end of the epoch."
_TRACE = "blocking calls of the trace"
_NO_SYNCS = Syncs(mode="dry", observed=True, steps=None, events=())
#: The sync of a condition: its value is used for nothing but the decision.
_CONDITION = "bool(tensor)"
#: The share of a distribution's creation that its checks take at least: 49% (Categorical of logits) to 100% (Normal)
#: were measured.
_CREATES = 0.5
#: A line that waits more often than this per step is in a loop, whose other work is not about one value that is read.
_IN_LOOP = 2.5
_NOT_MEASURED = "how long each line blocked was not measured"

#: Tensor methods that sync: a message writes them as calls. Listed, because a diagnosis needs no torch.
METHODS = (
    "item|tolist|cpu|cuda|to|numpy|copy_|fill_|nonzero|argwhere|masked_select|unique|unique_consecutive|bincount|"
    "repeat_interleave|equal|allclose|is_nonzero|multinomial|mode|to_sparse|coalesce"
)


class _Cost(NamedTuple):
    """How long syncs blocked per step, and the most and least that this costs; None where it is unknown.

    ``idle_ns`` is how long the device was idle because of these syncs, ``host_ns`` how long the host was in their
    lines, where it did more than wait.
    """

    blocked_ns: float | None
    source: str
    idle_ns: int | None = None
    ns: int | None = None
    low_ns: int | None = None
    host_ns: int | None = None


def _of_calls(calls: list[BlockingCalls]) -> _Cost:
    """The cost of blocking calls of a trace."""
    idle = [one.idle_ns for one in calls if one.idle_ns is not None]
    return _Cost(sum(one.blocked_ns for one in calls), _TRACE, sum(idle) if idle else None)


def check(
    step: StepBudget | None = None,
    syncs: Syncs = _NO_SYNCS,
    calls: tuple[SyncCall, ...] = (),
    lines: Lines | None = None,
) -> Iterator[Finding]:
    """Find syncs by line where they were observed, and by call in the trace; never the same sync twice."""
    if not syncs.observed:
        yield _not_observed(syncs)
    often, rare = _by_place(syncs)
    in_trace = blocking_calls(calls, step) if step is not None else []
    unseen = [one for one in in_trace if not any(one.made_by(event) for event in syncs.events)]
    by_line = [_blocked(group, often, syncs, in_trace) for group in often]
    costs = _costs([*by_line, *(_of_calls([one]) for one in unseen)], in_trace, step)
    for group, cost in zip(often, costs[: len(often)], strict=True):
        if step is not None and step.device is not None:
            cost = _copied(group, costs[: len(often)], cost, step, step.device)
        if step is not None and lines is not None:
            cost = _computed(group, lines, step, cost) or cost
        yield _line(group, syncs, cost, step, lines)
    if rare:
        yield _rare(rare, syncs)
    for one, cost in zip(unseen, costs[len(often) :], strict=True):
        if step is not None and cost.ns is not None and cost.ns >= _MIN_SHARE * step.wall_ns:
            yield _call(one, cost, step)


def _by_place(syncs: Syncs) -> tuple[list[list[SyncEvent]], list[list[SyncEvent]]]:
    """Events of one finding each (a line of the user's, or all of one library), and lines that sync rarely."""
    places: dict[tuple[str, ...], list[SyncEvent]] = {}
    for event in syncs.events:
        # A library's sync is at its own line, whichever line of the user's led there.
        inside = event.via if event.owner != "user" else None
        places.setdefault((event.owner, inside or f"{event.file}:{event.line}"), []).append(event)
    groups: dict[tuple[str, ...], list[SyncEvent]] = {}
    rare = []
    for (owner, place), found in places.items():
        rates = [event.per_step for event in found]
        # Summed over the line first: threads and ops that share a line make it sync more often than each does.
        seldom = None not in rates and sum(rate or 0.0 for rate in rates) < IN_STEP
        # One observed step alone does not show how often.
        if seldom or ((syncs.steps or 1) > 1 and all(event.in_steps == 1 for event in found)):
            rare.append(found)
        else:
            groups.setdefault((owner, place) if owner == "user" else (owner,), []).extend(found)
    # The user's lines first: most have the same unknown cost as a library's, which the user cannot edit.
    return sorted(groups.values(), key=lambda group: group[0].owner != "user"), rare


def _blocked(
    group: list[SyncEvent], lines: list[list[SyncEvent]], syncs: Syncs, in_trace: list[BlockingCalls]
) -> _Cost:
    """How long the syncs of one finding blocked per step: as timed, else as calls that no other line can have made."""
    timed = [event.blocked_ns for event in group if event.blocked_ns is not None]
    if timed and syncs.steps:
        return _Cost(sum(timed) / syncs.steps, f"blocked in {syncs.steps} steps")
    own = [calls for calls in in_trace if any(calls.made_by(event) for event in group)]
    others = [event for other in lines if other is not group for event in other]
    if own and not any(calls.made_by(event) for calls in own for event in others):
        return _of_calls(own)
    if syncs.mode == "dry" and not in_trace:
        return _Cost(None, "on a CPU there is no device to wait for")
    return _Cost(None, _NOT_MEASURED)


def _costs(blocked: list[_Cost], in_trace: list[BlockingCalls], step: StepBudget | None) -> list[_Cost]:
    """Blocked times with their costs: no more than the device was idle because of the syncs.

    Where it is not known which calls of the trace are whose, all share the idle time of all in proportion.
    """
    if step is None:
        return [_Cost(None, one.source if one.blocked_ns is None else _NOT_MEASURED) for one in blocked]
    shared = step.wall_ns
    if step.device is not None:
        idle = _of_calls(in_trace).idle_ns
        shared = step.of_device(step.device.causes.get("sync", 0)) if idle is None else idle
    total = sum(one.blocked_ns or 0 for one in blocked if one.idle_ns is None)
    costs = []
    for one in blocked:
        if one.blocked_ns is not None:
            idle = round(shared * one.blocked_ns / total) if one.idle_ns is None and total else one.idle_ns or 0
            ns = round(min(one.blocked_ns, idle))
            one = one._replace(idle_ns=idle, ns=ns, low_ns=round(_LOW * ns) if step.device is not None else 0)
        costs.append(one)
    return costs


def _copied(group: list[SyncEvent], every: list[_Cost], cost: _Cost, step: StepBudget, device: DeviceTime) -> _Cost:
    """The cost with the copies to the host in it, which a value that stays on the device does not need."""
    if cost.ns is None or cost.blocked_ns is None or any(event.kind != "copy-d2h" for event in group):
        return cost
    share = cost.blocked_ns / max(1.0, sum(one.blocked_ns or 0.0 for one in every))
    copies_ns = round(share * step.of_device(device.copies_ns.get("DtoH", 0)))
    return cost._replace(ns=max(cost.ns, min(round(cost.blocked_ns), cost.ns + copies_ns)))


def _computed(group: list[SyncEvent], lines: Lines, step: StepBudget, cost: _Cost) -> _Cost | None:
    """What the host does in the lines of the syncs, besides waiting; None where that is negligible or not known.

    On a CPU what lines compute for the value that they read. On a device what they do with it, while the device is
    idle: the host launches nothing meanwhile.
    """
    if any(event.owner != "user" or event.kind not in ("read", "copy-d2h") for event in group):
        return None
    if step.on_device and (step.device is None or cost.blocked_ns is None):
        return None
    if not step.on_device and (cost.ns is not None or any(event.kind != "read" for event in group)):
        return None
    places = {(event.file, event.line) for event in group}
    # "bool(tensor) in Normal.__init__": a function of torch's reads it, and not the line.
    inside = all(" in " in event.op for event in group)
    samples, ns = 0, 0.0
    for row in lines.rows:
        if row.worker is None and (row.file, row.line) in places:
            own = samples_of_reads(row, inside=inside)
            samples += own
            ns += row.host_ns * own / max(1, row.samples)
    own_ns = min(step.wall_ns, step.of_mean(round(ns)))
    if samples < MIN_SAMPLES or step.is_negligible(own_ns):
        return None
    if step.device is not None:
        if sum(event.per_step or 0.0 for event in group) > _IN_LOOP:
            return None
        idle_ns = min(own_ns, step.of_device(step.device.idle_ns))
        works = own_ns - (cost.blocked_ns or 0) >= NEGLIGIBLE * step.wall_ns and idle_ns > (cost.ns or 0)
        return cost._replace(ns=idle_ns, host_ns=own_ns) if works else None
    condition = all(event.op.startswith(_CONDITION) for event in group)
    remains = _CREATES if inside else LESS_OFTEN
    return _Cost(
        None,
        f"{samples} samples of stacks",
        ns=own_ns,
        low_ns=round(remains * own_ns) if condition else 0,
        host_ns=own_ns,
    )


def _not_observed(syncs: Syncs) -> Finding:
    return Finding(
        severity="info",
        message="Syncs were not checked: no tensor was on the (simulated) device in the steps observed.",
        advice=syncs.note
        or "Move the model or a batch to the device in the step, or name it: detect_syncs(device_of=...).",
        confidence="high",
        evidence=(Evidence("steps observed", syncs.steps, "", f"{syncs.mode} run"),),
    )


def _line(events: list[SyncEvent], syncs: Syncs, cost: _Cost, step: StepBudget | None, lines: Lines | None) -> Finding:
    first = max(events, key=lambda event: event.count)
    own = first.owner == "user"
    certain = any(event.certainty == "certain" for event in events)
    rates = [event.per_step for event in events if event.per_step is not None]
    often = f"{times(sum(rates))} per step" if rates else f"{sum(event.count for event in events)} times"
    names = list(dict.fromkeys(readable(event.op) for event in events))
    # In a dry run of a program that trains on a CPU nothing waits: an unknown cost is none.
    waits = syncs.mode == "cuda" or (step is not None and step.on_device)
    problem: Severity = "warning" if waits else "info"
    if step is not None and cost.ns is not None:
        problem = step.severity(cost.ns)
    verb = "may wait" if not certain else "would wait" if not waits else "wait" if len(names) > 1 else "waits"
    inside = "" if own else f", inside {first.owner}: not a line of yours"
    computes = ""
    if step is not None and cost.host_ns is not None:
        what = "the line does with it" if waits else "it reads"
        computes = f", and computing what {what} takes {step.shown(cost.host_ns - (cost.blocked_ns or 0))}"
    in_library = dict.fromkeys(event.via for event in events if event.via)
    return Finding(
        # What an optimizer reads in its step is lost on a device: another one does without.
        severity=problem if own or (waits and first.owner == "torch") else "info",
        message=f"{_listed(names)} {verb} for {'the device' if waits else 'a GPU'} {often}{inside}{computes}.",
        advice=_COMPUTES if computes and waits else first.advice or _ADVICE,
        confidence="high" if certain else "low",
        evidence=(
            *([Evidence.ms("time of the line", cost.host_ns, "samples of stacks")] if computes else ()),
            *([Evidence.ms("blocked time", cost.blocked_ns, cost.source)] if waits or not computes else ()),
            Evidence("syncs per step", sum(rates) if rates else None, "", _source(syncs)),
            *(Evidence("certainty", "may", "", event.reason) for event in events if event.certainty == "may"),
            *(Evidence("inside the library at", via, "", first.owner) for via in in_library),
        ),
        spent=None if first.file.startswith("<no ") else first.at,
        change=helper_call(first, lines) if own else None,
        cost_ns=cost.ns,
        saving_low_ns=cost.low_ns,
        saving_high_ns=cost.ns,
    )


def _source(syncs: Syncs) -> str:
    return f"{syncs.mode} run, {syncs.steps or 0} steps"


def readable(op: str) -> str:
    """An op as the user's line has it: ``item()``, ``item() in clip_grad_norm_``; others unchanged."""
    return re.sub(rf"^({METHODS})(?=$| in )", r"\1()", op)


def _listed(names: list[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``, ``a, b and 3 others``."""
    if len(names) > 3:
        names = [*names[:2], f"{len(names) - 2} others"]
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def _rare(places: list[list[SyncEvent]], syncs: Syncs) -> Finding:
    shown = [(_shown(events[0]), sum(event.per_step or 0.0 for event in events)) for events in places]
    listed = ", ".join(at for at, _ in shown[:4]) + (f" and {len(shown) - 4} more" if len(shown) > 4 else "")
    lines = "1 further line syncs" if len(shown) == 1 else f"{len(shown)} further lines sync"
    rare = max(rate for _, rate in shown) < IN_STEP
    seldom = "in fewer than every second step" if rare else f"in one of {syncs.steps} steps"
    return Finding(
        severity="info",
        message=f"{lines} {seldom}: {listed}.",
        advice="Nothing to do as long as they stay rare.",
        confidence="high",
        evidence=tuple(Evidence(f"syncs per step at {at}", round(rate, 4), "", _source(syncs)) for at, rate in shown),
    )


def _shown(event: SyncEvent) -> str:
    """``train.py:7``; for a library's sync the library's own line, and its name."""
    if event.owner == "user":
        return f"{os.path.basename(event.file)}:{event.line}"
    return f"{os.path.basename(event.via or f'{event.file}:{event.line}')} ({event.owner})"


def _call(calls: BlockingCalls, cost: _Cost, step: StepBudget) -> Finding:
    per_step = step.per == "step"
    often = f"{times(calls.syncs / traced_steps(step))} per step" if per_step else f"{calls.syncs} times"
    blocked = f"{ms(calls.blocked_ns)} {'per step' if per_step else 'in all'}"
    verb = "block" if calls.op is None and " and " in calls.names else "blocks"
    return step.finding(
        cost=cost.ns,
        saving=(cost.low_ns or 0, cost.ns or 0),
        message=f"{calls.op or calls.names} {verb} the host {often}, {blocked}.",
        advice=_ADVICE,
        evidence=(
            Evidence.ms("blocked time", cost.blocked_ns, f"{calls.names}, {calls.syncs} syncs in the trace"),
            Evidence.ms("idle because of it", cost.idle_ns, "the device, in these calls and until the next launch"),
        ),
        range=calls.range,
        spent=calls.at,
    )
