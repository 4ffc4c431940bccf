"""Devices that one process uses, and whether they compute at the same time or in turns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from perfkit._location import Location
from perfkit.measures._nested import sum_by
from perfkit.measures._rows import find_rows
from perfkit.measures.device._device_work import DeviceWork, device_work
from perfkit.measures.device._idle_places import functions_of
from perfkit.measures.results.device import DeviceTurns
from perfkit.trace.columns import Kind, Trace
from perfkit.trace.intervals import Bools, Ints, Union, joined

#: A device takes part if it computes for at least this share of the busiest one's time: with less it helps (it embeds,
#: evaluates), and the most that could be saved is a fifth of what both compute (chosen).
_TAKES_PART = 0.25
#: A launch to an idle device takes 3 to 50 us with a profiler: a kernel that begins later after its launch waited.
_QUEUED_NS = 50_000
#: Copies from one device to another; those that are recorded as copies on a device (ROCm) may be.
_PEER, _MAYBE = re.compile(r"PtoP"), re.compile(r"DtoD")


def measure_turns(trace: Trace) -> DeviceTurns | None:
    """How the devices that one process uses share the time of its steps; None for a process with one device."""
    works = _of_one_process(trace, [work for work in device_work(trace) if work.compute.starts.size])
    most = max((work.compute.length_ns for work in works), default=0)
    works = [work for work in works if work.compute.length_ns >= _TAKES_PART * most]
    if len(works) < 2:
        return None
    low, high = min(work.low for work in works), max(work.high for work in works)
    turns = _turns(works)
    queued = _queued(trace, works, turns)
    depends = _after_a_copy(trace, works, turns) | (queued >= 0)
    steps = works[0].steps.row.size
    of_step = np.searchsorted(works[0].bounds[1:-1], turns.begin, side="right")
    peers = find_rows(trace, _PEER, Kind.COPY)
    peers = peers[(trace.start_ns[peers] < high) & (trace.end_ns[peers] > low)]
    return DeviceTurns(
        devices=tuple(work.device for work in works),
        compute_ns=tuple(work.compute.length_ns for work in works),
        window_ns=high - low,
        any_ns=joined(*(work.compute for work in works)).length_ns,
        several_ns=_several_ns(works),
        steps=max(1, steps),
        shared_steps=_shared_steps(trace, works),
        dependent_steps=np.unique(of_step[depends]).size,
        copies=peers.size,
        at=_place(trace, peers) or _place(trace, queued[queued >= 0]),
    )


def _of_one_process(trace: Trace, works: Sequence[DeviceWork]) -> list[DeviceWork]:
    """The devices of the process that launched on most of them; those whose launches are not in the trace are none."""
    codes = {name: code for code, name in enumerate(dict.fromkeys(track.process for track in trace.tracks))}
    process = np.array([codes[track.process] for track in trace.tracks], np.int64)
    launchers = []
    for work in works:
        launch = trace.launch[work.rows]
        counts = np.bincount(process[trace.track[launch[launch >= 0]]], minlength=len(codes))
        launchers.append(int(counts.argmax()) if counts.any() else -1)
    known = [one for one in launchers if one >= 0]
    chosen = max(known, key=known.count, default=None)
    return [work for work, launcher in zip(works, launchers, strict=True) if launcher == chosen]


class _DeviceChanges(NamedTuple):
    """Changes of the device that computes: ``end`` of the compute before, on work ``source``, ``begin`` on ``work``."""

    end: Ints
    begin: Ints
    source: Ints
    work: Ints


def _turns(works: Sequence[DeviceWork]) -> _DeviceChanges:
    starts = np.concatenate([work.compute.starts for work in works])
    ends = np.concatenate([work.compute.ends for work in works])
    of = np.repeat(np.arange(len(works)), [work.compute.starts.size for work in works])
    order = np.argsort(starts, kind="stable")
    starts, ends, of = starts[order], ends[order], of[order]
    change = np.flatnonzero(of[1:] != of[:-1])
    return _DeviceChanges(ends[change], starts[change + 1], of[change], of[change + 1])


def _after_a_copy(trace: Trace, works: Sequence[DeviceWork], turns: _DeviceChanges) -> Bools:
    """Which turns follow a copy that began when the compute before had ended: a peer copy, or one on that device."""
    found = _begins_between(trace, find_rows(trace, _PEER, Kind.COPY), turns)
    maybe = find_rows(trace, _MAYBE, Kind.COPY)
    for number, work in enumerate(works):
        here = maybe[trace.device[maybe] == work.device]
        found |= (turns.source == number) & _begins_between(trace, here, turns)
    return found


def _begins_between(trace: Trace, copies: Ints, turns: _DeviceChanges) -> Bools:
    starts = np.sort(trace.start_ns[copies])
    return np.searchsorted(starts, turns.begin, side="left") > np.searchsorted(starts, turns.end, side="left")


def _queued(trace: Trace, works: Sequence[DeviceWork], turns: _DeviceChanges) -> Ints:
    """For each turn the launch of its first kernel, where that waited in the queue for the compute before; else -1."""
    found = np.full(turns.begin.size, -1, np.int64)
    for number, work in enumerate(works):
        mine = np.flatnonzero(turns.work == number)
        kernels = work.rows[(trace.kind[work.rows] == Kind.KERNEL) & ~work.is_communication]
        if not mine.size or not kernels.size:
            continue
        at = np.minimum(np.searchsorted(trace.start_ns[kernels], turns.begin[mine]), kernels.size - 1)
        launch = trace.launch[kernels[at]]
        same = (trace.start_ns[kernels[at]] == turns.begin[mine]) & (launch >= 0)
        ended = turns.end[mine] <= turns.begin[mine]
        ahead = trace.start_ns[np.maximum(launch, 0)] + _QUEUED_NS < turns.end[mine]
        found[mine] = np.where(same & ended & ahead, launch, -1)
    return found


def _several_ns(works: Sequence[DeviceWork]) -> int:
    """The time in which at least two of the devices compute."""
    parts: list[Union] = [work.compute for work in works]
    times = np.concatenate([*(part.starts for part in parts), *(part.ends for part in parts)])
    change = np.repeat([1, -1], times.size // 2)
    order = np.argsort(times, kind="stable")
    times, at_once = times[order], np.cumsum(change[order])
    return int(np.diff(times)[at_once[:-1] >= 2].sum())


def _shared_steps(trace: Trace, works: Sequence[DeviceWork]) -> int:
    """The steps in which at least two of the devices compute for a part of their own mean that counts."""
    steps = works[0].steps.row.size
    if not steps:
        return 1
    shared = np.zeros(steps, np.int64)
    for work in works:
        rows = (work.step >= 0) & (trace.kind[work.rows] == Kind.KERNEL) & ~work.is_communication
        spent = sum_by(work.step[rows], trace.duration_ns[work.rows[rows]], steps)
        shared += spent >= _TAKES_PART * work.compute.length_ns / steps
    return int((shared >= 2).sum())


def _place(trace: Trace, rows: Ints) -> Location | None:
    """The user's function in which most of these launches, or of the launches of this work, were made."""
    launch = np.where(np.isin(trace.kind[rows], (Kind.KERNEL, Kind.COPY)), trace.launch[rows], rows)
    places, of = functions_of(trace, launch)
    counts = np.bincount(of, minlength=len(places))
    counts[0] = 0
    return places[int(counts.argmax())] if counts.any() else None
