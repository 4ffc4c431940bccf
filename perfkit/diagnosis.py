"""Where a step's time goes, what is wrong, and what changing it would gain: the answer as data."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from perfkit.errors import RunError
from perfkit.findings import Finding
from perfkit.measures.results import (
    DeviceTime,
    Measured,
    OpTime,
    RangeTime,
    StepBreakdown,
    Throughput,
    TraceFacts,
    Utilization,
)
from perfkit.rules import EXPLAINED_BY, RULES, VERDICTS, Rule
from perfkit.rules.whole import MAJORITY, Whole, busiest_device, device_part, whole_of
from perfkit.rules.wording import between, duration, ms, percent, place
from perfkit.run.records import PHASES, Phases

#: Version of diagnosis.json. 1: the first. A reader refuses a newer one, and says so.
SCHEMA = 1

#: Rows of ops and ranges that a diagnosis keeps: what a person reads, not the whole table.
_ROWS = 30

#: What a phase is, in a sentence.
_IN_WORDS = {
    "data": "waiting for data",
    "transfer": "moving data to the device",
    "forward": "the forward pass",
    "backward": "the backward pass",
    "optimizer": "the optimizer",
    "validation": "validation",
    "callbacks": "callbacks",
    "logging": "logging",
    "checkpoint": "checkpoints",
    "other": "outside the phases that could be seen",
}


#: What a device does, in a sentence -> the field of `DeviceTime` that tells it.
_ON_DEVICE = {
    "compute kernels": "compute_ns",
    "communication with no compute beside it": "exposed_communication_ns",
    "copies with no compute beside them": "exposed_copy_ns",
    "with the device idle": "idle_ns",
}


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers beside the findings, for tables and drawings.

    ``wall_ns`` is what all lost times are part of: one mean step where ``Diagnosis.step`` is there, else
    the whole recording. ``ops`` and ``ranges`` are the longest ones; times in both are totals of the trace.
    """

    wall_ns: int | None = None
    ops_per_step: float | None = None
    syncs_per_step: float | None = None
    planned_steps: int | None = None
    throughput: Throughput | None = None
    utilization: Utilization | None = None
    trace: TraceFacts | None = None
    devices: tuple[DeviceTime, ...] = ()
    ops: tuple[OpTime, ...] = ()
    ranges: tuple[RangeTime, ...] = ()


class Overhead(msgspec.Struct, frozen=True, kw_only=True):
    """What perfkit itself cost: its own time per step, and the mean step while a window was recorded."""

    step_ns: int | None = None
    window_step_ns: int | None = None


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The answer: a verdict sentence, the step and its phases, findings in order of lost time.

    ``step`` is None where no steps were marked; the findings' times are then of the whole recording.
    ``missing`` says what could not be looked at, and why. Not measured = None, never zero.
    """

    schema: int = SCHEMA
    source: str
    verdict: str
    step: StepBreakdown | None = None
    phases: Phases | None = None
    findings: tuple[Finding, ...] = ()
    figures: Figures = Figures()
    missing: tuple[str, ...] = ()
    overhead: Overhead | None = None

    def to_json(self) -> str:
        """The diagnosis as it stands in diagnosis.json."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Diagnosis:
        """Read a diagnosis back.

        Raises:
            RunError: the text is no diagnosis, or one of a newer perfkit.
        """
        try:
            schema = msgspec.json.decode(text, type=_Versioned).schema
            if schema <= SCHEMA:
                return msgspec.json.decode(text, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise RunError(f"this is no diagnosis of perfkit: {error}") from error
        raise RunError(
            f"the diagnosis has schema {schema}, this perfkit reads up to {SCHEMA}: "
            "read it with the perfkit that wrote it, or a newer one"
        )

    def __repr__(self) -> str:
        return f"<diagnosis of {self.source}: {self.verdict}>"


class _Versioned(msgspec.Struct):
    schema: int


def diagnose(source: str | os.PathLike[str] | Measured, *, rules: Sequence[Rule] | None = None) -> Diagnosis:
    """Find what a training step loses time to.

    ``source`` is a run folder, a Kineto trace, an nsys SQLite export, or what was measured from one.
    ``rules`` replaces the rules that are run (default: all). Writes nothing.

    Raises:
        TraceError, RunError: the path is missing, or neither a run nor a trace.
    """
    if isinstance(source, Measured):
        measured = source
    else:
        # Loads numpy, which `perfkit run` must leave to the program it runs until that is over.
        from perfkit.measures.path import measure

        measured = measure(source)
    findings, failed = _run(RULES if rules is None else rules, measured)
    whole = whole_of(measured)
    step = measured.step or measured.trace_step
    return Diagnosis(
        source=measured.source,
        verdict=_verdict(findings, measured, whole),
        step=step,
        phases=step.phases_ns if step is not None else None,
        findings=findings,
        figures=_figures(measured, whole),
        missing=(*measured.missing, *(measured.trace.lost if measured.trace else ()), *failed),
        overhead=_overhead(measured),
    )


def _run(rules: Sequence[Rule], measured: Measured) -> tuple[tuple[Finding, ...], list[str]]:
    """Findings in order, and the rules that failed; the healthy verdicts speak only where no problem has a price."""
    findings: list[Finding] = []
    failed: list[str] = []

    def apply(rule: Rule) -> None:
        try:
            findings.extend(rule.check(measured))
        except Exception as error:  # noqa: BLE001 - one rule's defect must not take the other answers with it
            failed.append(f"the rule {rule.ID} failed and was left out: {type(error).__name__}: {error}")

    for rule in rules:
        if rule not in VERDICTS:
            apply(rule)
    if not any(finding.severity != "info" and finding.lost_ns is not None for finding in findings):
        for rule in rules:
            if rule in VERDICTS:
                apply(rule)
    return tuple(sorted(_linked(findings), key=_order)), failed


def _linked(findings: list[Finding]) -> list[Finding]:
    """Mark each finding that another one explains."""
    found = {finding.rule for finding in findings if finding.lost_ns is not None and finding.severity != "info"}
    linked = []
    for finding in findings:
        causes = [cause for cause in EXPLAINED_BY.get(finding.rule, ()) if cause in found]
        linked.append(msgspec.structs.replace(finding, caused_by=causes[0]) if causes else finding)
    return linked


def _order(finding: Finding) -> tuple[int, int]:
    """By lost time; what has no price comes after what has one, and before what is told for information."""
    group = 2 if finding.severity == "info" else 1 if finding.lost_ns is None else 0
    return group, -(finding.lost_ns or 0)


def _verdict(findings: tuple[Finding, ...], measured: Measured, whole: Whole | None) -> str:
    priced = [f for f in findings if f.severity != "info" and f.lost_ns is not None and f.caused_by is None]
    unpriced = sum(1 for finding in findings if finding.severity != "info" and finding.lost_ns is None)
    if priced and whole is not None:
        parts = [_dominates(measured, whole), _first(priced, whole), _planned(priced, measured)]
    else:
        speaking = {rule.ID for rule in VERDICTS}
        parts = [f.message for f in findings if f.rule in speaking] or ["No rule found a problem with a price."]
    if unpriced:
        parts.append(f"{unpriced} finding{'s have' if unpriced > 1 else ' has'} no price here.")
    return " ".join(part for part in parts if part)


def _dominates(measured: Measured, whole: Whole) -> str:
    """The length of the step and its largest part."""
    parts = _parts(measured, whole)
    takes = f"A step takes {ms(whole.wall_ns)}" if whole.per == "step" else f"The recording lasts {ms(whole.wall_ns)}"
    if not parts:
        return f"{takes}."
    name = max(parts, key=lambda name: parts[name])
    most = "most of it" if parts[name] >= MAJORITY * whole.wall_ns else "the largest part"
    sentence = f"{takes}, {most} {name} ({percent(parts[name], whole.wall_ns)})"
    device = busiest_device(measured)
    if device is None or name in _ON_DEVICE:
        return f"{sentence}."
    return f"{sentence}; the device is idle {percent(device.idle_ns, device.window_ns)} of it."


def _parts(measured: Measured, whole: Whole) -> dict[str, int]:
    step = measured.step or measured.trace_step
    if step is not None:
        times = {phase: getattr(step.phases_ns, phase) for phase in PHASES}
        seen = {_IN_WORDS[phase]: ns for phase, ns in times.items() if ns}
        if set(seen) - {_IN_WORDS["other"]}:
            return seen
    device = busiest_device(measured)
    if device is None:
        return {}
    return {
        name: device_part(ns, device, whole) for name, field in _ON_DEVICE.items() if (ns := getattr(device, field))
    }


def _first(priced: list[Finding], whole: Whole) -> str:
    first = priced[0]
    at = f" at {place(first.file, first.line)}" if first.file is not None else ""
    gain = between(first.gain_low_ns or 0, first.gain_high_ns or 0)
    share = percent(first.gain_high_ns or 0, whole.wall_ns)
    of = "per step" if whole.per == "step" else "of it"
    sentence = f"Start with {first.rule}{at}: it gains {gain} {of} ({share} at most)"
    if len(priced) == 1:
        return f"{sentence}."
    # Gains are of one step: findings may cost the same time, and no sum gains more than all of it.
    total_ns = min(whole.wall_ns, sum(finding.gain_high_ns or 0 for finding in priced))
    together = "both" if len(priced) == 2 else f"all {len(priced)}"
    return f"{sentence}, {together} together {ms(total_ns)} at most."


def _planned(priced: list[Finding], measured: Measured) -> str:
    """The same for the run, where its length is known and the step is one outside windows."""
    if measured.planned_steps is None or measured.step is None:
        return ""
    wall_ns = measured.step.wall_ns * measured.planned_steps
    gain_ns = min(priced[0].gain_high_ns or 0, measured.step.wall_ns) * measured.planned_steps
    return (
        f"Over the planned {measured.planned_steps:,} steps that is up to {duration(gain_ns)} of {duration(wall_ns)}."
    )


def _figures(measured: Measured, whole: Whole | None) -> Figures:
    ops = measured.ops
    syncs = measured.syncs
    counted = [event.per_step for event in syncs.events if event.per_step is not None] if syncs else []
    return Figures(
        wall_ns=whole.wall_ns if whole is not None else None,
        ops_per_step=ops.count / ops.steps if ops is not None and ops.steps else None,
        syncs_per_step=sum(counted) if syncs is not None and syncs.observed and syncs.steps else None,
        planned_steps=measured.planned_steps,
        throughput=measured.throughput,
        utilization=measured.utilization,
        trace=measured.trace,
        devices=measured.devices,
        ops=tuple(sorted(ops.rows, key=lambda row: -row.self_ns)[:_ROWS]) if ops is not None else (),
        ranges=tuple(sorted(measured.ranges, key=lambda row: -row.host_ns)[:_ROWS]),
    )


def _overhead(measured: Measured) -> Overhead | None:
    rank = measured.rank
    own_ns = round(rank.overhead_ns / rank.steps) if rank and rank.overhead_ns is not None and rank.steps else None
    window_ns = measured.step.window_ns if measured.step is not None else None
    return Overhead(step_ns=own_ns, window_step_ns=window_ns) if own_ns is not None or window_ns is not None else None
