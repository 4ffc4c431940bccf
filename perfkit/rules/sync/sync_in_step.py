"""The host waits for the device inside the step.

Problem: a sync lets the host wait until the device has done all queued work. Meanwhile nothing new is
queued, so after each sync the device runs dry until the host has launched the next kernels.

How it shows: `perfkit.detect_syncs` names the line and how often it synced; a trace shows the blocking
call (cudaStreamSynchronize, cudaMemcpy, aten::item) and how long it blocked. On a CPU nothing waits: a
dry run finds the same lines and counts them, but a sync has no price there, so the lost time is null.

Causes: `.item()`, `float(loss)`, `.cpu()`, `.tolist()`, `print(loss)`, `if tensor:`, boolean-mask
indexing, `nonzero()`, copies of pageable memory, `torch.cuda.synchronize()` left in from timing.

Fix: keep values on the device and read them rarely.

    total += loss.detach()                    # not: total += loss.item()
    if step % 100 == 0:
        log(total.item() / 100)

    x = torch.where(mask, x, 0)               # not: x[~mask] = 0 with x[mask] read back
    batch = batch.to(device, non_blocking=True)   # from pinned memory

Gain: between nothing (the device had enough queued, or waits for something else) and the blocked time,
never more than the time the device was idle for other reasons than data loading. The low end is
the idle time that the trace blames on syncs.

A line counts as syncing in the step from one sync in two steps on; rarer ones are told together,
because logging every hundred steps is what the fix above does. So is a line that synced in one step where
more than one was observed: that one may have been the last of an epoch.

Where there are both lines and a trace, each sync is told once: blocking calls that a line can have made
(a read, a copy, a synchronize) give that line its price where no other line can have made them, and only
calls that no line can have made are told by themselves. A blocking copy and the wait right behind it are
one sync. In a trace, calls that block less than 1% of the step are left out.

Source: CUDA's rules for synchronous calls, and PyTorch's sync debug mode. Prices come from traces and
from CUDA runs: not run on a GPU yet.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from perfkit._format import ms, per_step
from perfkit.findings import Evidence, Finding
from perfkit.measures.results.host import SyncCall
from perfkit.measures.results.measured import Measured
from perfkit.rules._step_budget import Whole, busiest_device, device_part, severity_of, trace_scale, whole_of
from perfkit.run.records import SyncEvent, SyncKind, Syncs

ID = "sync-in-step"

#: From one sync in two steps on, a line syncs "in the step"; see above.
_IN_STEP = 0.5
#: Calls in a trace that block for less than this share of the step are left out.
_TOLD = 0.01
_NO_PRICE = "on a CPU there is no device to wait for"
_ADVICE = "Keep the value on the device and read it rarely, every 100 steps or at the end of the epoch."

#: Tensor methods that sync: a message writes them as the call that stands in the user's line. The list is
#: written out, as diagnosing needs no torch.
METHODS = frozenset(
    (
        "item",
        "tolist",
        "cpu",
        "cuda",
        "to",
        "numpy",
        "copy_",
        "fill_",
        "nonzero",
        "argwhere",
        "masked_select",
        "unique",
        "unique_consecutive",
        "bincount",
        "repeat_interleave",
        "equal",
        "allclose",
        "is_nonzero",
        "multinomial",
        "mode",
        "to_sparse",
        "coalesce",
    )
)

#: Ops of a trace that read one value, and that copy between host and device.
_READS = frozenset(("aten::item", "aten::_local_scalar_dense", "aten::is_nonzero"))
_COPIES = frozenset(("aten::to", "aten::_to_copy", "aten::copy_", "aten::cpu", "aten::cuda", "aten::pin_memory"))
#: Syncs seen live whose calls in a trace may be of any sort: a printed tensor is copied and read, a
#: collective and code without a name may do anything.
_ANY: frozenset[SyncKind] = frozenset(("print", "collective", "other"))


class _Calls(NamedTuple):
    """Blocking calls of a trace under one op and range; ``blocked_ns`` is per step of the whole."""

    op: str | None
    range: str | None
    names: str
    syncs: int
    blocked_ns: float


class _Price(NamedTuple):
    """What syncs cost per step: blocked, at most lost by it, and at least."""

    blocked_ns: int
    cost_ns: int
    low_ns: int
    source: str


def check(measured: Measured) -> Iterator[Finding]:
    """Find syncs by line where they were observed, and by call in the trace; never the same sync twice."""
    whole = whole_of(measured)
    syncs = measured.syncs
    if syncs is not None and not syncs.observed:
        yield _not_observed(syncs)
    events = syncs.events if syncs is not None else ()
    lines, rare = _by_place(events, (syncs.steps or 1) if syncs is not None else 1)
    in_trace = _calls_of(measured, whole) if whole is not None else []
    unseen = [calls for calls in in_trace if not any(_can_have_made(event, calls) for event in events)]
    blocked = [*_blocked_by_line(lines, syncs, in_trace), *((calls.blocked_ns, _TRACE) for calls in unseen)]
    prices = _prices(blocked, measured, whole)
    of_lines, of_calls = prices[: len(lines)], prices[len(lines) :]
    if syncs is not None:
        for group, price in zip(lines, of_lines, strict=True):
            yield _line(group, syncs, price, whole, has_calls=bool(in_trace))
        if rare:
            yield _rare(rare, syncs)
    if whole is not None:
        for calls, price in zip(unseen, of_calls, strict=True):
            if price is not None and price.cost_ns >= _TOLD * whole.wall_ns:
                yield _call(calls, price, measured, whole)


def _not_observed(syncs: Syncs) -> Finding:
    return Finding(
        rule=ID,
        severity="info",
        message="Syncs were not checked: no tensor was on the (simulated) device in the steps observed.",
        advice=syncs.note
        or "Move the model or a batch to the device in the step, or name it: detect_syncs(device_of=...).",
        confidence="high",
        evidence=(Evidence("steps observed", syncs.steps, "", f"{syncs.mode} run"),),
    )


# What was seen live, and in the trace.


def _by_place(events: Sequence[SyncEvent], steps: int) -> tuple[list[list[SyncEvent]], list[list[SyncEvent]]]:
    """Events that are one finding each (a line of the user's, or all of one library), and lines that sync rarely."""
    places: dict[tuple[str, ...], list[SyncEvent]] = {}
    for event in events:
        # A library's sync is at its own line, whichever line of the user's led there.
        inside = event.via if event.owner != "user" else None
        places.setdefault((event.owner, inside or f"{event.file}:{event.line}"), []).append(event)
    groups: dict[tuple[str, ...], list[SyncEvent]] = {}
    rare = []
    for (owner, place), found in places.items():
        often = [event.per_step for event in found]
        # Summed over the line first: threads and ops that share a line make it sync more often than each does.
        seldom = all(rate is not None for rate in often) and sum(rate or 0.0 for rate in often) < _IN_STEP
        # One step alone tells nothing of how often.
        if seldom or (steps > 1 and all(event.in_steps == 1 for event in found)):
            rare.append(found)
        else:
            groups.setdefault((owner, place) if owner == "user" else (owner,), []).extend(found)
    return list(groups.values()), rare


def _calls_of(measured: Measured, whole: Whole) -> list[_Calls]:
    """The blocking calls of the trace that belong to the step, by op and range, longest first."""
    steps = _steps(measured, whole)
    found: dict[tuple[str | None, str, str | None], list[SyncCall]] = {}
    for call in measured.sync_calls:
        # Without an op, a copy still goes with the cudaStreamSynchronize behind it.
        alone = call.name if call.op is None and not _copies_or_follows(call.name) else ""
        found.setdefault((call.op, alone, call.range), []).append(call)
    groups = []
    for (op, _, in_range), calls in found.items():
        # `.item()` is a copy and a cudaStreamSynchronize behind it: one sync, so not the sum of both.
        waits = sum(call.count for call in calls if "Synchronize" in call.name)
        syncs = max(waits, sum(call.count for call in calls) - waits)
        names = " and ".join(dict.fromkeys(call.name for call in calls))
        blocked_ns = sum(call.blocked_ns for call in calls) * trace_scale(measured) / steps
        groups.append(_Calls(op, in_range, names, syncs, blocked_ns))
    # A call in fewer than every second step belongs to the recording, not to the step: the profiler itself
    # synchronizes the device once when it stops.
    least = _IN_STEP * steps if whole.per == "step" else 2
    return sorted((calls for calls in groups if calls.syncs >= least), key=lambda calls: -calls.blocked_ns)


def _copies_or_follows(names: str) -> bool:
    """Whether API calls copy, or wait for a stream as a blocking copy does."""
    return "Memcpy" in names or "StreamSynchronize" in names


def _steps(measured: Measured, whole: Whole) -> int:
    """The steps that counts of the trace are totals over."""
    return max(1, measured.trace_step.steps) if measured.trace_step is not None and whole.per == "step" else 1


def _can_have_made(event: SyncEvent, calls: _Calls) -> bool:
    """Whether calls of a trace may be a sync that was seen live; by its kind, as a trace knows no lines."""
    if event.kind in _ANY:
        return True
    if calls.op is None:
        return event.kind == "explicit" or _copies_or_follows(calls.names)
    if calls.op in _READS:
        return event.kind == "read"
    if calls.op in _COPIES:  # `.tolist()` reads, by way of a copy
        return event.kind in ("copy-h2d", "copy-d2h") or event.op.startswith("tolist")
    return event.kind != "explicit"


# Prices.

_TRACE = "blocking calls of the trace"


def _blocked_by_line(
    lines: list[list[SyncEvent]], syncs: Syncs | None, in_trace: list[_Calls]
) -> list[tuple[float | None, str]]:
    """Blocked ns per step of each group of events, and where it comes from; None where nothing tells."""
    if syncs is None:
        return []
    blocked: list[tuple[float | None, str]] = []
    for group in lines:
        priced = [event.blocked_ns for event in group if event.blocked_ns is not None]
        if priced and syncs.steps:
            blocked.append((sum(priced) / syncs.steps, f"blocked in {syncs.steps} steps"))
            continue
        mine = [calls for calls in in_trace if any(_can_have_made(event, calls) for event in group)]
        others = [event for other in lines if other is not group for event in other]
        alone = not any(_can_have_made(event, calls) for calls in mine for event in others)
        blocked.append((sum(calls.blocked_ns for calls in mine), _TRACE) if mine and alone else (None, ""))
    return blocked


def _prices(
    blocked: Sequence[tuple[float | None, str]], measured: Measured, whole: Whole | None
) -> list[_Price | None]:
    """Blocked times per step as prices: together no more than the device can have lost by them.

    That is its idle time that data loading does not explain; at least it is the idle time blamed on syncs.
    """
    if whole is None:
        return [None] * len(blocked)
    room_ns, blamed_ns = whole.wall_ns, 0
    if (device := busiest_device(measured)) is not None:
        loading_ns = device.causes.get("data loading", 0)
        room_ns = device_part(max(0, device.idle_ns - loading_ns), device, whole)
        blamed_ns = device_part(device.causes.get("sync", 0), device, whole)
    total = sum(ns for ns, _ in blocked if ns is not None)
    fit = min(1.0, room_ns / total) if total else 1.0
    prices: list[_Price | None] = []
    for ns, source in blocked:
        cost_ns = round(fit * (ns or 0))
        low_ns = min(round(blamed_ns * (ns or 0) / total), cost_ns) if total else 0
        prices.append(None if ns is None else _Price(round(ns), cost_ns, low_ns, source))
    return prices


# Findings.


def readable(op: str) -> str:
    """An op as it stands in the user's line: ``item()``, ``item() in clip_grad_norm_``; others as they are."""
    name, _, rest = op.partition(" ")
    return f"{name}() {rest}".rstrip() if name in METHODS and (not rest or rest.startswith("in ")) else op


def _line(
    events: list[SyncEvent], syncs: Syncs, price: _Price | None, whole: Whole | None, *, has_calls: bool
) -> Finding:
    first = max(events, key=lambda event: event.count)
    mine = first.owner == "user"
    certain = any(event.certainty == "certain" for event in events)
    known = [event.per_step for event in events if event.per_step is not None]
    often = f"{per_step(sum(known))} per step" if known else f"{sum(event.count for event in events)} times"
    names = list(dict.fromkeys(readable(event.op) for event in events))
    verb = "may wait" if not certain else "wait" if len(names) > 1 else "waits"
    whose = "." if mine else f", inside {first.owner}: not a line of yours."
    evidence = [_blocked(price, syncs, has_calls=has_calls)]
    evidence.append(
        Evidence("syncs per step", sum(known) if known else None, "", f"{syncs.mode} run, {syncs.steps or 0} steps")
    )
    evidence += [Evidence("certainty", "may", "", event.reason) for event in events if event.certainty == "may"]
    inside = dict.fromkeys(event.via for event in events if event.via)
    evidence += [Evidence("inside the library at", via, "", first.owner) for via in inside]
    placed = not first.file.startswith("<no ")
    return Finding(
        rule=ID,
        severity="info" if not mine else severity_of(price.cost_ns, whole) if price and whole else "warning",
        message=f"{_listed(names)} {verb} for the device {often}{whose}",
        advice=first.advice or _ADVICE,
        confidence="high" if certain else "low",
        evidence=tuple(evidence),
        file=first.file if placed else None,
        line=first.line if placed else None,
        function=first.function or None,
        cost_ns=price.cost_ns if price else None,
        saving_low_ns=price.low_ns if price else None,
        saving_high_ns=price.cost_ns if price else None,
    )


def _listed(names: list[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``, ``a, b and 3 others``."""
    if len(names) > 3:
        names = [*names[:2], f"{len(names) - 2} others"]
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def _blocked(price: _Price | None, syncs: Syncs, *, has_calls: bool) -> Evidence:
    if price is not None:
        return Evidence("blocked time", round(price.blocked_ns / 1e6, 3), "ms", price.source)
    why = _NO_PRICE if syncs.mode == "dry" and not has_calls else "how long each line blocked was not measured"
    return Evidence("blocked time", None, "ms", why)


def _rare(places: list[list[SyncEvent]], syncs: Syncs) -> Finding:
    shown = [_where(events[0]) for events in places]
    listed = ", ".join(shown[:4]) + (f" and {len(shown) - 4} more" if len(shown) > 4 else "")
    lines = "1 further line syncs" if len(places) == 1 else f"{len(places)} further lines sync"
    often = max(sum(event.per_step or 0.0 for event in events) for events in places)
    seldom = "in fewer than every second step" if often < _IN_STEP else f"in one of {syncs.steps} steps"
    return Finding(
        rule=ID,
        severity="info",
        message=f"{lines} {seldom}: {listed}.",
        advice="Nothing to do as long as they stay rare.",
        confidence="high",
        evidence=tuple(
            Evidence(
                f"syncs per step at {where}",
                round(sum(event.per_step or 0.0 for event in events), 4),
                "",
                f"{syncs.mode} run, {syncs.steps or 0} steps",
            )
            for where, events in zip(shown, places, strict=True)
        ),
    )


def _where(event: SyncEvent) -> str:
    """``train.py:7``; of a library's sync its own line, and whose it is."""
    if event.owner == "user":
        return f"{os.path.basename(event.file)}:{event.line}"
    return f"{os.path.basename(event.via or f'{event.file}:{event.line}')} ({event.owner})"


def _call(calls: _Calls, price: _Price, measured: Measured, whole: Whole) -> Finding:
    per_whole = whole.per == "step"
    often = f"{per_step(calls.syncs / _steps(measured, whole))} per step" if per_whole else f"{calls.syncs} times"
    in_all = f"{ms(price.blocked_ns)} {'per step' if per_whole else 'in all'}"
    verb = "block" if calls.op is None and " and " in calls.names else "blocks"
    return Finding(
        rule=ID,
        severity=severity_of(price.cost_ns, whole),
        message=f"{calls.op or calls.names} {verb} the host {often}, {in_all}.",
        advice=_ADVICE,
        confidence="medium",
        evidence=(
            Evidence(
                "blocked time",
                round(price.blocked_ns / 1e6, 3),
                "ms",
                f"{calls.names}, {calls.syncs} syncs in the trace",
            ),
            Evidence(
                "at most lost", round(price.cost_ns / 1e6, 3), "ms", "the device's idle time without data loading"
            ),
        ),
        range=calls.range,
        cost_ns=price.cost_ns,
        saving_low_ns=price.low_ns,
        saving_high_ns=price.cost_ns,
    )
