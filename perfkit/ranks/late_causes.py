"""Why a rank is late: which part of its time is longer than that of the others.

- ``data``: it waits for its batches, or copies them. ``work``: its batches hold more.
- ``kernels``: kernels of a class (``detail``) are slower at an equal count: its device, or what it shares it with.
- ``more work``: it runs more kernels, as the last stage of a pipeline does.
- ``computing``: forward, backward or optimizer take longer, and what in them was not recorded.
- ``host``: Python and other work of the host: callbacks, logging, or a device that waits for its launches.
- ``validation``, ``checkpoint``, ``gc``: these. ``link``: the transfer itself is slow.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from perfkit.ranks._rank_statistics import Matrix
from perfkit.ranks._rank_steps import PARTS, ROWS, KernelMeans
from perfkit.ranks.step_times import StepTimes
from perfkit.trace.intervals import Ints

Cause = Literal[
    "data", "work", "kernels", "more work", "computing", "host", "validation", "checkpoint", "gc", "link", "unknown"
]

#: The collector explains lateness if its time is at least this share of it.
_MOST = 0.5
#: Kernels are more if their count is larger by this share: shapes choose other algorithms at times.
_MORE = 0.02
#: The share of a block of ranks that stands out if it is late as a whole.
_NAMED = 0.8
#: Ranks that others are compared with, and late ranks that are looked at: means of more do not differ.
_COMPARED, _LOOKED_AT = 256, 64


class Lateness(NamedTuple):
    """What a step would save in the mean, and for each step how late it is and what it would save."""

    saving_ns: float
    late_ns: Matrix
    gain: Matrix


def cause_of(times: StepTimes, late: Ints) -> tuple[Cause, str]:
    """The cause, and its detail, of ranks (positions) that are late in most steps."""
    others = np.setdiff1d(np.arange(times.ranks.size), late)
    mine = _typical_parts(times, late[:_LOOKED_AT])
    usual = _typical_parts(times, others[:: max(1, others.size // _COMPARED)])
    more = mine - usual
    parts = np.nan_to_num(more[: len(PARTS)])
    total, collected = float(parts.sum()), more[ROWS.index("gc")]
    if parts.max() <= 0:
        return "unknown", ""
    if np.isfinite(collected) and collected >= _MOST * max(total, 1.0):
        return "gc", ""
    part = PARTS[int(parts.argmax())]
    if part == "computing":
        work = ROWS.index("work")
        longer = parts[PARTS.index("computing")] / max(1.0, float(usual[PARTS.index("computing")]))
        if more[work] > max(_MORE, _MOST * longer) * usual[work]:  # never where it is not known
            return "work", ""
        found = _kernels(times, late, others)
        return found if found is not None else ("computing", "")
    return part, ""


def _typical_parts(times: StepTimes, positions: Ints) -> Matrix:
    """The median over steps of each part, mean of these ranks; for collections the mean, as most steps have none."""
    found = []
    for position in positions.tolist():
        parts = times.parts_of(position)
        known = np.isfinite(parts[0])
        middle = np.median(parts[:, known], axis=1) if known.any() else np.full(len(ROWS), np.nan)
        gc = parts[ROWS.index("gc")][known]
        middle[ROWS.index("gc")] = gc.mean() if gc.size else np.nan
        found.append(middle)
    return np.array(found, np.float32).mean(axis=0) if found else np.full(len(ROWS), np.nan, np.float32)


def _kernels(times: StepTimes, late: Ints, others: Ints) -> tuple[Cause, str] | None:
    """Whether late ranks run more kernels or slower ones, and of which class; None without kernels."""
    mine = [one for p in late[:_LOOKED_AT].tolist() if (one := times.kernels[p]) is not None]
    usual = [one for p in others[:: max(1, others.size // _COMPARED)].tolist() if (one := times.kernels[p]) is not None]
    if not mine or not usual:
        return None
    ns, count = _means(mine, 0), _means(mine, 1)
    usual_ns, usual_count = _means(usual, 0), _means(usual, 1)
    classes = [name for name in ns if name != "communication"]
    longer = {name: ns[name] - usual_ns.get(name, 0.0) for name in classes}
    if not longer or max(longer.values()) <= 0:
        return None
    worst = max(longer, key=lambda name: longer[name])
    more = sum(count[name] for name in classes) / max(1.0, sum(usual_count.get(name, 0.0) for name in classes)) - 1
    slower = sum(ns[name] for name in classes) / max(1.0, sum(usual_ns.get(name, 0.0) for name in classes)) - 1
    if more > _MORE and more >= _MOST * slower:
        return "more work", worst
    grown = {name: longer[name] / max(1.0, usual_ns.get(name, 0.0)) for name in classes}
    # All classes alike: the device as a whole.
    return "kernels", worst if any(one < _MOST * grown[worst] for one in grown.values()) else ""


def _means(kernels: list[KernelMeans], field: int) -> dict[str, float]:
    names = dict.fromkeys(name for one in kernels for name in one[field])
    return {name: sum(one[field].get(name, 0.0) for one in kernels) / len(kernels) for name in names}


def is_last_stage(times: StepTimes, late: Ints, cause: Cause) -> bool:
    """Whether the late ranks are the last of equal blocks of ranks and have more to do, as a pipeline's last stage."""
    if cause not in ("more work", "computing") or (late.size < 2 and cause != "more work"):
        return False
    # Some of the stage may not stand out, or were not read.
    least = times.world_size - int(times.ranks[late].min())
    sizes = [size for size in range(least, times.world_size // 2 + 1) if times.world_size % size == 0]
    read = int((times.ranks >= times.world_size - sizes[0]).sum()) if sizes else 0
    last = bool(sizes) and late.size >= _NAMED * read
    one_host = len({times.hosts[one] for one in late.tolist()} - {""}) == 1
    # Without kernels, a block that is one host may as well be a slow one.
    return last and (cause == "more work" or not one_host or len(set(times.hosts)) == 1)
