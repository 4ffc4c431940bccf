"""The step that costs are a part of: one way to scale a time to it, to judge its size, and to make a finding.

No change to a training loop saves more than the step it changes (Amdahl's law), so every rule counts against one
number: the typical step, or the whole recording where no steps are marked in it.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal, NamedTuple

import msgspec

from perfkit._format import ms, percent
from perfkit._location import Location
from perfkit.findings import Finding, Severity
from perfkit.ledger.rows import apportion
from perfkit.measures.results.device import LATE_LAUNCHES, DeviceTime
from perfkit.measures.results.kernels import Kernels
from perfkit.measures.results.measurements import Measurements, TraceFacts
from perfkit.measures.results.patterns import Patterns
from perfkit.measures.results.steps import MeanStep, TracedStep, TypicalStep
from perfkit.measures.sample_counts import FEW_SAMPLES, MIN_SAMPLES, show_share
from perfkit.run.records import Phase, Rank, StepBoundary

#: A part of the step below this share is not reported: torch-tb-profiler uses 5% too for its advice on loader workers,
#: and the mean steps of two equal runs on a shared machine differ by about as much.
NEGLIGIBLE = 0.05

#: What takes less of a step on a CPU is a difference between two healthy programs rather than why one is slow: of the
#: 98 corrections that were measured in the labelled suite's tuning half, 93 save more than a tenth of the step, and
#: none saves 5 to 11% of it.
SMALL = 0.1

#: An expected saving from this share of a step on a CPU is a warning, a smaller one information (chosen: a program
#: whose correction saves less may be called healthy in the labelled suite). On a device costs are measured by its own
#: clock, and warnings begin where reports do.
WARNING = 0.15

#: From this share on a finding is critical: the training takes a third longer than it has to (1 / 0.75).
CRITICAL = 0.25

#: Long steps in a rhythm (previews, reports) are taken to be meant up to this share of the mean step, and no loop with
#: more of them is called healthy by its typical step: chosen, as what a false all-clear is in the labelled suite.
RARE = 0.15

#: A part that takes at least half dominates the step.
MAJORITY = 0.5

#: What removing a part of the host's work saves beyond its own time: the rest finds caches and allocators as it left
#: them. With a program and its corrected twin run in turns (benchmarks/bench_verdict.py), removing a part whose time
#: was measured saved 0.9 to 1.2 times that time for three of four.
_BEYOND = 0.15


def shows_amount(samples: int, total: int) -> bool:
    """Whether so many of ``total`` samples are enough to say how long they stand for."""
    return show_share(samples, total, SMALL)


class StepPart(NamedTuple):
    """A part of the step in ns, with where the number comes from."""

    ns: int
    source: str


class StepBudget(msgspec.Struct, frozen=True, kw_only=True):
    """The typical step (or the recording) that costs are a part of.

    ``wall_ns`` is its length, ``per`` is "program" where the run saw no step, and "recording" where a trace marks none;
    ``counted_by`` is what the run counts its steps by. ``source`` says where the length comes from. ``typical``,
    ``mean`` and ``traced`` are the steps it was made from. ``device`` is the one that did most, without the idle time
    by which recording made its steps longer; None where none was recorded. ``on_device`` is whether a device computes:
    the trace or the run holds one.
    """

    AVAILABLE_FROM: ClassVar[str] = "a recording with steps or events"

    wall_ns: int
    per: Literal["step", "recording", "program"]
    source: str
    counted_by: StepBoundary | None = None
    typical: TypicalStep | None = None
    mean: MeanStep | None = None
    traced: TracedStep | None = None
    device: DeviceTime | None = None
    on_device: bool = False

    @classmethod
    def from_measurements(cls, found: Measurements) -> StepBudget | None:
        """The typical step outside windows, else of the trace, else the recording; None where nothing has a length."""
        device = max((d for d in found.all(DeviceTime) if d.window_ns > 0), key=lambda d: d.busy_ns, default=None)
        rank, facts = found.get(Rank), found.get(TraceFacts)
        typical, traced = found.get(TypicalStep), found.get(TracedStep)
        step = next((one for one in (typical, traced) if one is not None and one.wall_ns > 0), None)
        per: Literal["step", "recording", "program"] = "recording"
        if step is not None:
            wall_ns, per, source = step.wall_ns, "step", step.source
            # Where the host runs ahead, its steps are shorter than the device's, which are what a user waits for.
            if step is traced and device is not None and device.window_ns > device.steps * wall_ns:
                wall_ns, source = device.window_ns // device.steps, f"{source}, on device {device.device}"
        elif device is not None:
            wall_ns, source = device.window_ns, "first to last device event"
        elif facts is not None and facts.span_ns > 0:
            wall_ns, source = facts.span_ns, "first to last event"
        elif rank is not None and rank.program is not None:
            # Imports come once, and the program's lines do not have them.
            wall_ns, per = rank.program.wall_ns - (rank.program.import_ns or 0), "program"
            source = "the whole program without its imports"
        else:
            return None
        if device is not None and typical is not None and step is typical:
            device = _outside_windows(device, typical.wall_ns)
        return cls(
            wall_ns=wall_ns,
            per=per,
            source=source,
            counted_by=rank.step_boundary if rank is not None else None,
            typical=typical,
            mean=found.get(MeanStep),
            traced=traced,
            device=device,
            on_device=device is not None or (rank is not None and bool(rank.devices)),
        )

    @property
    def subject(self) -> str:
        """What takes the time, with its verb: ``A step takes``, ``A call of Planner takes``, and others."""
        if self.per != "step":
            return "The program without its imports takes" if self.per == "program" else "The recording lasts"
        by = self.counted_by
        if by is not None and by.module is not None:
            return f"A call of {by.module} takes"
        if by is not None and by.by == "round" and by.called_at is not None:
            return f"A round of the loop at line {by.called_at.line} takes"
        return "A step (one backward) takes" if by is not None and by.by == "backward" else "A step takes"

    # -- scaling: every time below is per step of this budget, in ns

    @property
    def trace_scale(self) -> float:
        """Factor from host time in the trace to host time of the step; 1.0 where the trace is all there is.

        A recording slows a step, and so do other programs on a shared machine.
        """
        if self.typical is None or self.traced is None or self.traced.wall_ns <= 0:
            return 1.0
        return self.typical.wall_ns / self.traced.wall_ns

    def of_device(self, ns: int) -> int:
        """Time of `device` in its window, by its share of that window.

        By share and not divided by steps: the window may hold time between steps.
        """
        return round(self.wall_ns * min(1.0, ns / self.device.window_ns)) if self.device is not None else 0

    def of_kernels(self, ns: float, kernels: Kernels) -> int:
        """Time of some of the kernels on `device`; 0 without one.

        `Kernels` are of the whole trace and all devices: their share of the device's time in compute kernels counts.
        """
        if self.device is None or not kernels.total_ns:
            return 0
        return self.of_device(round(self.device.compute_ns * ns / kernels.total_ns))

    def of_pattern(self, ns: float, patterns: Patterns) -> int:
        """A time of `Patterns`, no more than the step.

        On a host by its share of the step that was measured alike: a recording and other programs slow a step, but
        hardly change its shares. Kernels take as long as without a recording.
        """
        if patterns.step_ns is not None:
            return round(self.wall_ns * min(1.0, ns / max(1, patterns.step_ns)))
        return min(round(ns), self.wall_ns)

    def of_mean(self, ns: int) -> int:
        """A mean over all sampled steps, scaled to this one: the noise of other programs lengthens all parts alike."""
        if self.typical is None or self.mean is None or self.mean.wall_ns <= 0:
            return ns
        return round(ns * min(1.0, self.typical.wall_ns / self.mean.wall_ns))

    @property
    def rare_ns(self) -> int:
        """By how much the mean of all steps exceeds the typical one: time that comes in a few long steps."""
        if self.typical is None or self.mean is None:
            return 0
        return max(0, self.mean.wall_ns - self.typical.wall_ns)

    def phase(self, phase: Phase) -> StepPart | None:
        """Time of a phase: from the rows of steps, else from the trace; None where neither has it."""
        if self.typical is not None and (ns := getattr(self.typical.phases_ns, phase)) is not None:
            return StepPart(min(ns, self.wall_ns), self.typical.source)
        if self.traced is not None and (ns := getattr(self.traced.phases_ns, phase)) is not None:
            return StepPart(min(round(ns * self.trace_scale), self.wall_ns), self.traced.source)
        return None

    @property
    def waits_for_host(self) -> bool:
        """Whether the step is as long as the host takes: no device computes, or it mostly waits for launches."""
        if not self.on_device or self.device is None:
            return not self.on_device
        late_ns = sum(self.device.causes.get(cause, 0) for cause in LATE_LAUNCHES)
        return late_ns >= MAJORITY * self.device.window_ns

    # -- thresholds

    def is_negligible(self, ns: float) -> bool:
        """Whether a time is too small a part of the step to be reported."""
        return ns < NEGLIGIBLE * self.wall_ns

    def severity(self, ns: float) -> Severity:
        """Of what is saved, or on a device costs: critical from a quarter of the step on, a warning from 15% of it.

        On a device a warning begins at a twentieth.

        Where much of the loop is in a few long steps, of the mean step: that is what a user gets.
        """
        mean_ns = self.mean.wall_ns if self.mean is not None else 0
        share = ns / (mean_ns if mean_ns > (1 + RARE) * self.wall_ns else self.wall_ns)
        least = NEGLIGIBLE if self.on_device else WARNING
        return "critical" if share >= CRITICAL else "warning" if share >= least else "info"

    def percent(self, ns: float) -> str:
        """A time's share of the step: ``56%``."""
        return percent(ns, self.wall_ns)

    def shown(self, ns: float) -> str:
        """A time and its share of the step: ``8.0 ms of the 20.0 ms step (40%)``."""
        return f"{ms(ns)} of the {ms(self.wall_ns)} {self.per} ({self.percent(ns)})"

    def minimum_saving(self, ns: float, *, samples: int | None) -> float:
        """``ns``, less one deviation of a count of so few ``samples`` that it is more than a third."""
        return ns if samples is None or samples >= MIN_SAMPLES else ns * (1 - 1 / math.sqrt(max(samples, FEW_SAMPLES)))

    def maximum_saving(self, ns: float, *, samples: int | None = None, error: float = 0.0) -> int:
        """The most that removing a time saves: of the host's more than the time itself, and no more than the step.

        A sampled time has an error of one deviation of its count of ``samples``; ``error`` is a further one, as a share
        of the time. The errors are independent: they add as squares.
        """
        beyond = _BEYOND if self.waits_for_host else 0.0
        sampling = 0.0 if samples is None else 1 / math.sqrt(max(samples, FEW_SAMPLES))
        return min(self.wall_ns, round(ns * (1 + math.hypot(beyond, sampling, error))))

    # -- findings

    def finding(
        self,
        *,
        cost: float | None,
        saving: tuple[float, float] | None = None,
        message: str,
        advice: str,
        spent: Location | None = None,
        change: Location | None = None,
        severity: Severity | None = None,
        **others: Any,
    ) -> Finding:
        """A finding whose severity follows from the middle of its saving, on a device from its cost.

        It is a warning where the cost is not known.

        ``cost`` and ``saving`` (low, high) are ns per step; ``others`` are further fields of `Finding`.
        """
        low, high = saving if saving is not None else (None, None)
        # A device's clock measures costs, and what a correction leaves of them is known less.
        expected = cost if saving is None or self.on_device else sum(saving) / 2
        return Finding(
            severity=severity or (self.severity(expected) if expected is not None else "warning"),
            message=message,
            advice=advice,
            spent=spent.at if spent is not None else None,
            change=change.at if change is not None and change.at != (spent and spent.at) else None,
            cost_ns=None if cost is None else round(cost),
            saving_low_ns=None if low is None else round(low),
            saving_high_ns=None if high is None else round(high),
            of_ns=self.wall_ns if cost is not None else None,
            **others,
        )


def _outside_windows(device: DeviceTime, step_ns: int) -> DeviceTime:
    """The device's window if its steps took as long as those outside of windows.

    A profiler slows the host, by some microseconds per op and launch, and not the device, which then waits longer for
    launches: a ResNet-18 on an H200 took 13.5 ms a step and 19.5 ms in a window, and 2 ms of both on the device.
    """
    late_ns = sum(device.causes.get(cause, 0) for cause in LATE_LAUNCHES)
    longer_ns = min(late_ns, device.window_ns - device.steps * step_ns)
    if longer_ns <= 0:
        return device
    late = [one for one in device.idle if one.cause in LATE_LAUNCHES]
    shorter = iter(apportion(late_ns - longer_ns, [one.ns for one in late]))
    idle = tuple(
        msgspec.structs.replace(one, ns=next(shorter)) if one.cause in LATE_LAUNCHES else one for one in device.idle
    )
    causes = {cause: 0 if cause in LATE_LAUNCHES else ns for cause, ns in device.causes.items()}
    for one in idle:
        if one.cause in LATE_LAUNCHES:
            causes[one.cause] = causes.get(one.cause, 0) + one.ns
    return msgspec.structs.replace(
        device,
        window_ns=device.window_ns - longer_ns,
        idle_ns=device.idle_ns - longer_ns,
        causes=causes,
        idle=idle,
    )


class MeanStepBudget(StepBudget, frozen=True, kw_only=True):
    """The mean of all steps, for what happens in a few of them only: the typical step leaves those out."""

    @classmethod
    def from_measurements(cls, found: Measurements) -> StepBudget | None:
        """The mean step, else what `StepBudget` falls back to."""
        budget = super().from_measurements(found)
        mean = budget.mean if budget is not None else None
        if budget is None or mean is None or mean.wall_ns <= 0:
            return budget
        return msgspec.structs.replace(budget, wall_ns=mean.wall_ns, per="step", source=f"{mean.source}, all of them")

    def phase(self, phase: Phase) -> StepPart | None:
        """Time of a phase in the mean of all steps."""
        step = self.mean or self.typical
        ns = getattr(step.phases_ns, phase) if step is not None else None
        return StepPart(ns, self.source) if ns is not None else None

    def shown(self, ns: float) -> str:
        """A time and its share of the mean step: ``8.0 ms of the mean step of 28.0 ms (29%)``."""
        return f"{ms(ns)} of the mean step of {ms(self.wall_ns)} ({self.percent(ns)})"


class DeviceStepBudget(StepBudget, frozen=True, kw_only=True):
    """The typical step of a run or trace that holds device work: for rules on the device."""

    AVAILABLE_FROM: ClassVar[str] = "a trace with device work: a window recorded on a machine with a GPU"

    device: DeviceTime

    @classmethod
    def from_measurements(cls, found: Measurements) -> StepBudget | None:
        """The typical step, None without device work."""
        budget = super().from_measurements(found)
        return budget if budget is not None and budget.device is not None else None
