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
because logging every hundred steps is what the fix above does. In a trace, calls that block less than
1% of the step are left out.

Source: CUDA's rules for synchronous calls, and PyTorch's sync debug mode. Prices come from traces and
from CUDA runs: not run on a GPU yet.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from perfkit.findings import Evidence, Finding
from perfkit.measures.results import Measured, SyncCall
from perfkit.rules.whole import Whole, busiest_device, device_part, severity_of, trace_scale, whole_of
from perfkit.rules.wording import ms, per_step
from perfkit.run.records import SyncEvent, Syncs

ID = "sync-in-step"

#: From one sync in two steps on, a line syncs "in the step"; see above.
_IN_STEP = 0.5
#: Calls in a trace that block for less than this share of the step are left out.
_TOLD = 0.01
_NO_PRICE = "on a CPU there is no device to wait for"
_ADVICE = "Keep the value on the device and read it rarely, every 100 steps or at the end of the epoch."


def check(measured: Measured) -> Iterator[Finding]:
    """Find syncs by line where they were observed, else by call in the trace; never the same sync twice."""
    whole = whole_of(measured)
    syncs = measured.syncs
    if syncs is not None and not syncs.observed:
        yield _not_observed(syncs)
    if syncs is not None and syncs.events:
        yield from _by_line(syncs, measured, whole)
    elif whole is not None:
        yield from _by_call(measured, whole)


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


class _Price(NamedTuple):
    """What syncs cost per step: blocked, at most lost by it, and at least."""

    blocked_ns: int
    lost_ns: int
    low_ns: int
    source: str


def _by_line(syncs: Syncs, measured: Measured, whole: Whole | None) -> Iterator[Finding]:
    lines: dict[tuple[str, int], list[SyncEvent]] = {}
    rare: list[SyncEvent] = []
    owned: dict[str, list[SyncEvent]] = {}
    for event in syncs.events:
        if event.per_step is not None and event.per_step < _IN_STEP:
            rare.append(event)
        elif event.owner == "user":
            lines.setdefault((event.file, event.line), []).append(event)
        else:
            owned.setdefault(event.owner, []).append(event)
    groups = [*lines.values(), *owned.values()]
    for events, price in zip(groups, _price_lines(groups, syncs, measured, whole), strict=True):
        yield _line(events, syncs, price, whole)
    if rare:
        yield _rare(rare, syncs)


def _price_lines(
    groups: list[list[SyncEvent]], syncs: Syncs, measured: Measured, whole: Whole | None
) -> list[_Price | None]:
    if whole is None or syncs.mode == "dry" or not syncs.steps:
        return [None] * len(groups)
    blocked: list[float | None] = []
    for events in groups:
        priced = [event.blocked_ns for event in events if event.blocked_ns is not None]
        blocked.append(sum(priced) / syncs.steps if priced else None)
    source = f"blocked in {syncs.steps} steps"
    if len(groups) == 1 and blocked == [None] and measured.sync_calls:
        # One line syncs, so what the trace saw block is its doing; with several the trace cannot tell them apart.
        blocked = [
            sum(call.blocked_ns for call in measured.sync_calls) * trace_scale(measured) / _steps(measured, whole)
        ]
        source = "blocking calls of the trace"
    return _prices(blocked, source, measured, whole)


def _prices(blocked: Sequence[float | None], source: str, measured: Measured, whole: Whole) -> list[_Price | None]:
    """Blocked times per step as prices: together no more than the device can have lost by them.

    That is its idle time that data loading does not explain; at least it is the idle time blamed on syncs.
    """
    room_ns, blamed_ns = whole.wall_ns, 0
    if (device := busiest_device(measured)) is not None:
        loading_ns = device.causes.get("data loading", 0)
        room_ns = device_part(max(0, device.idle_ns - loading_ns), device, whole)
        blamed_ns = device_part(device.causes.get("sync", 0), device, whole)
    total = sum(ns for ns in blocked if ns is not None)
    fit = min(1.0, room_ns / total) if total else 1.0
    prices: list[_Price | None] = []
    for ns in blocked:
        lost_ns = round(fit * (ns or 0))
        low_ns = min(round(blamed_ns * (ns or 0) / total), lost_ns) if total else 0
        prices.append(None if ns is None else _Price(round(ns), lost_ns, low_ns, source))
    return prices


def _steps(measured: Measured, whole: Whole) -> int:
    """The steps that counts of the trace are totals over."""
    return max(1, measured.trace_step.steps) if measured.trace_step is not None and whole.per == "step" else 1


def _line(events: list[SyncEvent], syncs: Syncs, price: _Price | None, whole: Whole | None) -> Finding:
    first = max(events, key=lambda event: event.count)
    mine = first.owner == "user"
    certain = any(event.certainty == "certain" for event in events)
    known = [event.per_step for event in events if event.per_step is not None]
    often = f"{per_step(sum(known))} per step" if known else f"{sum(event.count for event in events)} times"
    names = list(dict.fromkeys(event.op for event in events))
    verb = "may wait" if not certain else "wait" if len(names) > 1 else "waits"
    whose = "." if mine else f", inside {first.owner}: not a line of yours."
    evidence = [_blocked(price, syncs)]
    evidence.append(
        Evidence("syncs per step", sum(known) if known else None, "", f"{syncs.mode} run, {syncs.steps or 0} steps")
    )
    evidence += [Evidence("certainty", "may", "", event.reason) for event in events if event.certainty == "may"]
    evidence += [Evidence("inside the library at", event.via, "", first.owner) for event in events if event.via]
    return Finding(
        rule=ID,
        severity="info" if not mine else severity_of(price.lost_ns, whole) if price and whole else "warning",
        message=f"{' and '.join(names)} {verb} for the device {often}{whose}",
        advice=first.advice or _ADVICE,
        confidence="high" if certain else "low",
        evidence=tuple(evidence),
        file=first.file,
        line=first.line,
        function=first.function,
        lost_ns=price.lost_ns if price else None,
        gain_low_ns=price.low_ns if price else None,
        gain_high_ns=price.lost_ns if price else None,
    )


def _blocked(price: _Price | None, syncs: Syncs) -> Evidence:
    if price is not None:
        return Evidence("blocked time", round(price.blocked_ns / 1e6, 3), "ms", price.source)
    why = _NO_PRICE if syncs.mode == "dry" else "how long each line blocked was not measured"
    return Evidence("blocked time", None, "ms", why)


def _rare(events: Iterable[SyncEvent], syncs: Syncs) -> Finding:
    places = list(dict.fromkeys(f"{os.path.basename(event.file)}:{event.line}" for event in events))
    shown = ", ".join(places[:4]) + (f" and {len(places) - 4} more" if len(places) > 4 else "")
    lines = "1 further line syncs" if len(places) == 1 else f"{len(places)} further lines sync"
    return Finding(
        rule=ID,
        severity="info",
        message=f"{lines} in fewer than every second step: {shown}.",
        advice="Nothing to do as long as they stay rare.",
        confidence="high",
        evidence=(Evidence("lines", len(places), "", f"{syncs.mode} run, {syncs.steps or 0} steps"),),
    )


def _by_call(measured: Measured, whole: Whole) -> Iterator[Finding]:
    steps = _steps(measured, whole)
    groups: dict[tuple[str, str | None], list[SyncCall]] = {}
    for call in measured.sync_calls:
        groups.setdefault((call.op or call.name, call.range), []).append(call)
    # A call in fewer than every second step belongs to the recording, not to the step: the profiler itself
    # synchronizes the device once when it stops.
    least = _IN_STEP * steps if whole.per == "step" else 2
    kept = [calls for calls in groups.values() if sum(call.count for call in calls) >= least]
    blocked = [sum(call.blocked_ns for call in calls) * trace_scale(measured) / steps for calls in kept]
    for calls, price in zip(kept, _prices(blocked, "blocking calls of the trace", measured, whole), strict=True):
        if price is None or price.lost_ns < _TOLD * whole.wall_ns:
            continue
        count = sum(call.count for call in calls)
        names = " and ".join(dict.fromkeys(call.name for call in calls))
        often = f"{per_step(count / steps)} per step" if whole.per == "step" else f"{count} times"
        in_all = f"{ms(price.blocked_ns)} {'per step' if whole.per == 'step' else 'in all'}"
        yield Finding(
            rule=ID,
            severity=severity_of(price.lost_ns, whole),
            message=f"{calls[0].op or names} blocks the host {often}, {in_all}.",
            advice=_ADVICE,
            confidence="medium",
            evidence=(
                Evidence(
                    "blocked time", round(price.blocked_ns / 1e6, 3), "ms", f"{names}, {count} calls in the trace"
                ),
                Evidence(
                    "at most lost", round(price.lost_ns / 1e6, 3), "ms", "the device's idle time without data loading"
                ),
            ),
            range=calls[0].range,
            lost_ns=price.lost_ns,
            gain_low_ns=price.low_ns,
            gain_high_ns=price.lost_ns,
        )
