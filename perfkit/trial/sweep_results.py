"""What the reruns of a sweep show: throughput, how memory follows the batch, which value to choose."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple, cast, get_args

import msgspec

from perfkit._format import rate, size
from perfkit.measures.memory.batch_line import RESERVE
from perfkit.measures.steps._timed_rows import own_rows
from perfkit.run.records import Memory, Step, Sweep, SweepPoint
from perfkit.trial.reruns import RerunResult

#: Throughputs within this share of the best one are equally good. Two reruns of one program differ by 1 to 3 % on a
#: machine that other programs use, so that a smaller share would choose by chance.
NEAR = 0.05
#: The first steps have what happens once: allocation, choice of algorithms, the start of threads.
_WARM_UP = 2
#: Two halves of three steps are the least whose difference means something.
LEAST_STEPS = 6


class Half(NamedTuple):
    """The first or the second half of a rerun's steps: what was processed, and in how much time."""

    amount: float
    ns: int
    steps: int

    @property
    def per_s(self) -> float:
        return self.amount / self.ns * 1e9


def halves_of(rows: Sequence[Step], skip: int = 0) -> list[Half]:
    """Both halves of the timed training steps after the warm-up and ``skip`` more; [] where there are too few.

    The amount is in samples, or in steps where the samples of a step are not known. Validation is left out.
    """
    timed = [row for row in own_rows(rows) if row.kind == "timed"][_WARM_UP + skip :]
    if sum(row.steps for row in timed) < LEAST_STEPS:
        return []
    amounts = _samples(timed) or [float(row.steps) for row in timed]
    found = []
    middle = len(timed) // 2
    for part in (slice(None, middle), slice(middle, None)):
        ns = sum(row.wall_ns - (row.phases_ns.validation or 0) for row in timed[part])
        if ns > 0:
            found.append(Half(sum(amounts[part]), ns, sum(row.steps for row in timed[part])))
    return found


def _samples(rows: Sequence[Step]) -> list[float] | None:
    """The samples of each row; None where they are not known.

    A row has the loader's batch size. Where samples are of one size, smaller batches (an epoch's last one) are seen by
    their elements.
    """
    nominal = [row.samples for row in rows if row.samples is not None]
    if len(nominal) < len(rows):
        return None
    elements = [row.batch_elements / row.steps for row in rows if row.batch_elements is not None]
    if len(elements) < len(rows):
        return [float(samples) for samples in nominal]
    full = max(elements)
    if elements.count(full) < len(rows) / 2:  # samples of different sizes
        return [float(samples) for samples in nominal]
    return [samples * own / full for samples, own in zip(nominal, elements, strict=True)]


def batch_of(rows: Sequence[Step]) -> int | None:
    """The samples per step; None where the loop reads from no loader with a batch size."""
    known = [row.samples // row.steps for row in own_rows(rows) if row.samples is not None]
    return statistics.mode(known) if known else None


def elements_per_sample(rows: Sequence[Step]) -> float | None:
    """The elements of a batch over the batch size of its loader: where batches are not full, fewer than elsewhere."""
    known = [
        row.batch_elements / row.samples
        for row in own_rows(rows)
        if row.batch_elements is not None and row.samples is not None and row.samples
    ]
    return statistics.median(known) if known else None


class MeasuredValue:
    """What is known of one value, over its reruns."""

    def __init__(self, value: int) -> None:
        self.value = value
        self.results: list[RerunResult] = []
        self.halves: list[Half] = []
        self.elements: float | None = None
        #: Why it has no number.
        self.failure: SweepPoint | None = None

    @property
    def per_s(self) -> float | None:
        """Samples or steps per second; None where none was measured.

        Each rerun counts the same, whatever its steps: a machine that becomes slower then does so to all values.
        """
        return statistics.fmean(half.per_s for half in self.halves) if self.halves else None

    @property
    def step_ns(self) -> float | None:
        """Mean step."""
        return statistics.fmean(half.ns / half.steps for half in self.halves) if self.halves else None

    def peak_bytes(self, memory: Memory | None) -> int | None:
        """The largest peak of its reruns."""
        found = (one.peak_device_bytes if memory == "device" else one.peak_bytes for one in self.results)
        return max((peak for peak in found if peak is not None), default=None)

    def point(self, memory: Memory | None, total_bytes: int | None) -> SweepPoint:
        """What is reported of it."""
        if self.failure is not None or self.step_ns is None:
            return self.failure or SweepPoint(value=self.value, outcome="not-tried")
        rates, peak = [half.per_s for half in self.halves], self.peak_bytes(memory)
        point = SweepPoint(
            value=self.value,
            reruns=len(self.results),
            steps=sum(half.steps for half in self.halves),
            step_ns=round(self.step_ns),
            per_s=self.per_s,
            low=min(rates),
            high=max(rates),
            peak_bytes=peak,
            left_bytes=total_bytes - peak if total_bytes is not None and peak is not None else None,
        )
        if leaves_reserve(point, total_bytes):
            return point
        note = f"leaves less than {RESERVE:.0%} of {size(total_bytes or 0)}"
        return msgspec.structs.replace(point, note=note)


def memory_of(values: Sequence[MeasuredValue]) -> Memory | None:
    """What the peaks are of: the device's memory where the program uses one."""
    for memory in get_args(Memory):
        if peaks_of(values, memory):
            return cast("Memory", memory)
    return None


def peaks_of(values: Sequence[MeasuredValue], memory: Memory | None) -> dict[int, int]:
    """The peak of each measured value."""
    found = {one.value: one.peak_bytes(memory) for one in values if one.halves}
    return {value: peak for value, peak in found.items() if peak is not None}


def leaves_reserve(point: SweepPoint, total_bytes: int | None) -> bool:
    """Whether enough memory remains; True where that is not known."""
    return point.left_bytes is None or total_bytes is None or point.left_bytes >= RESERVE * total_bytes


def recommend(points: Sequence[SweepPoint], total_bytes: int | None) -> SweepPoint | None:
    """The smallest value within 5 % of the best throughput, among those that leave the reserve."""
    usable = [point for point in points if point.outcome == "measured" and leaves_reserve(point, total_bytes)]
    best = max((point.per_s or 0.0 for point in usable), default=0.0)
    near = (point for point in usable if point.per_s is not None and point.per_s >= (1 - NEAR) * best)
    return min(near, key=lambda point: point.value, default=None)


def noise_of(points: Sequence[SweepPoint]) -> float:
    """Half of the largest difference between the halves of a value's reruns, as a share of its throughput."""
    known = [one for one in points if one.per_s and one.low is not None and one.high is not None]
    return max((((one.high or 0.0) - (one.low or 0.0)) / 2 / (one.per_s or 1.0) for one in known), default=0.0)


def accumulation(own: int, recommended: int) -> int | None:
    """Steps over which to accumulate gradients so that the effective batch stays ``own``; None: no number does."""
    return own // recommended if recommended <= own and own % recommended == 0 else None


def verdict_of(sweep: Sweep) -> str:
    """The result in one or two sentences."""
    points = {point.value: point for point in sweep.points}
    chosen = points.get(sweep.recommended) if sweep.recommended is not None else None
    if chosen is None or chosen.per_s is None or sweep.own is None:
        return f"No {sweep.swept} that was measured leaves {RESERVE:.0%} of the memory."
    usable = [one for one in sweep.points if one.per_s is not None and leaves_reserve(one, sweep.total_bytes)]
    best = max(usable, key=lambda one: one.per_s or 0.0)
    found = f"{sweep.swept}={chosen.value} is the fastest with {rate(chosen.per_s)} {sweep.unit}/s"
    if chosen.value != best.value:
        found = (
            f"{sweep.swept}={chosen.value} is the smallest within {NEAR:.0%} of the best throughput: "
            f"{rate(chosen.per_s)} {sweep.unit}/s, and {rate(best.per_s or 0.0)} with {best.value}"
        )
    if chosen.value == sweep.own:
        return f"{found}. The program has this value already."
    if points[sweep.own].per_s:
        found += f"; {rate(points[sweep.own].per_s or 0.0)} with the program's own {sweep.own}"
    return f"{found}.{_effect(sweep)}"


def _effect(sweep: Sweep) -> str:
    """What another batch does to the effective one."""
    own, chosen = sweep.own, sweep.recommended
    if sweep.swept != "batch-size" or own is None or chosen is None:
        return ""
    if sweep.accumulate is not None:
        return f" Accumulating gradients over {sweep.accumulate} steps keeps the effective batch of {own}."
    factor = chosen / own
    return (
        f" The effective batch becomes {factor:.3g} times as large: a program that accumulates gradients can do so "
        "over fewer steps; how another effective batch converges was not measured."
    )
