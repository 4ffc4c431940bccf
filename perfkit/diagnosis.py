"""Where a step's time goes, what is wrong, and what changing it would gain: the answer as data."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from html import escape

import msgspec

from perfkit._format import between, duration, ms, percent, place
from perfkit._html import html_table
from perfkit.errors import RunError
from perfkit.findings import Finding
from perfkit.measures.results.device import Communication, CopyTime, DeviceTime, Launches
from perfkit.measures.results.host import OpTime, RangeTime, SourceLine
from perfkit.measures.results.kernel_profiles import KernelProfiles, short_name
from perfkit.measures.results.kernels import KernelTime, NameTime, Roofline
from perfkit.measures.results.measured import Measured, TraceFacts
from perfkit.measures.results.memory import DeviceMemory
from perfkit.measures.results.steps import StepBreakdown, Throughput, Utilization
from perfkit.rules import EXPLAINED_AT_LINE, EXPLAINED_BY, EXPLAINED_IN_FUNCTION, RULES, VERDICTS, Rule
from perfkit.rules._step_budget import MAJORITY, NEGLIGIBLE, Whole, busiest_device, device_part, whole_of
from perfkit.rules.verdicts import compute_bound, memory_bound
from perfkit.run.records import PHASES, LineRow, Phases, SyncEvent

#: Version of diagnosis.json. 1: the first. A reader refuses a newer one, and says so.
SCHEMA = 1

#: Rows of each table that a diagnosis keeps: what a person reads, not the whole of it.
_ROWS = 30
#: Kernels of a report of Nsight Compute that are kept: each was chosen to be profiled, and two reports are compared by
#: them.
_PROFILES = 1000

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


#: The verdicts that a run is healthy.
_HEALTHY = (compute_bound.ID, memory_bound.ID)
#: Standard deviations between the 10th and the 90th percentile of a normal distribution.
_P10_TO_P90 = 2.56


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers beside the findings, for tables and drawings.

    ``wall_ns`` is what all lost times are part of: one mean step where ``Diagnosis.step`` is there, else
    the whole recording. ``ops``, ``ranges``, ``kernels``, ``api_calls`` and ``source_lines`` are the longest ones, in
    totals of the trace. ``lines`` are the hottest by sampling, per step. ``graph_breaks`` are of the whole run.
    """

    wall_ns: int | None = None
    ops_per_step: float | None = None
    launches_per_step: float | None = None
    syncs_per_step: float | None = None
    graph_breaks: int | None = None
    planned_steps: int | None = None
    throughput: Throughput | None = None
    utilization: Utilization | None = None
    trace: TraceFacts | None = None
    devices: tuple[DeviceTime, ...] = ()
    launches: tuple[Launches, ...] = ()
    communication: tuple[Communication, ...] = ()
    copies: tuple[CopyTime, ...] = ()
    memory: tuple[DeviceMemory, ...] = ()
    roofline: tuple[Roofline, ...] = ()
    ops: tuple[OpTime, ...] = ()
    ranges: tuple[RangeTime, ...] = ()
    kernels: tuple[KernelTime, ...] = ()
    kernel_profiles: KernelProfiles | None = None
    kernel_classes_ns: dict[str, int] = {}
    api_calls: tuple[NameTime, ...] = ()
    lines: tuple[LineRow, ...] = ()
    source_lines: tuple[SourceLine, ...] = ()
    syncs: tuple[SyncEvent, ...] = ()


class Overhead(msgspec.Struct, frozen=True, kw_only=True):
    """What perfkit itself cost: its own time per step, the mean step in a window, and the most memory it held."""

    step_ns: int | None = None
    window_step_ns: int | None = None
    held_bytes: int | None = None


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

    def _repr_html_(self) -> str:
        """For notebooks: the verdict, the phases and the findings as tables; no script, all escaped."""
        times = {name: ns for name in PHASES if self.phases is not None and (ns := getattr(self.phases, name))}
        phases = [(name, ms(ns), percent(ns, sum(times.values()))) for name, ns in times.items()]
        findings = [
            (
                finding.rule,
                place(finding.file, finding.line) if finding.file is not None else finding.range or "",
                ms(finding.cost_ns) if finding.cost_ns is not None else "",
                finding.message,
                finding.advice,
            )
            for finding in self.findings
            if finding.follows is None
        ]
        parts = [f"<p><b>{escape(self.verdict)}</b></p>"]
        if phases:
            parts.append(html_table(("phase", "per step", "share"), phases))
        if findings:
            parts.append(html_table(("finding", "where", "lost", "what", "change"), findings))
        return "".join((*parts, *(f"<p><i>Note: {escape(sentence)}</i></p>" for sentence in self.missing)))


class _Versioned(msgspec.Struct):
    schema: int


def diagnose(source: str | os.PathLike[str] | Measured, *, rules: Sequence[Rule] | None = None) -> Diagnosis:
    """Find what a training step loses time to.

    ``source`` is a run folder, a Kineto trace, an nsys SQLite export, a report of ncu, or what was measured from one.
    ``rules`` replaces the rules that are run (default: all). Writes nothing.

    Raises:
        TraceError, RunError: the path is missing, or neither a run nor a trace.
    """
    if isinstance(source, Measured):
        measured = source
    else:
        # Loads numpy, which `perfkit run` must leave to the program it runs until that is over.
        from perfkit.measures.gathering import measure

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
            findings.extend(_no_wider_than_half(finding) for finding in rule.check(measured))
        except Exception as error:  # noqa: BLE001 - one rule's defect must not take the other answers with it
            failed.append(f"the rule {rule.ID} failed and was left out: {type(error).__name__}: {error}")

    for rule in rules:
        if rule not in VERDICTS:
            apply(rule)
    priced = any(finding.severity != "info" and finding.cost_ns is not None for finding in findings)
    # Kernels that were profiled one by one hold no step, of which a verdict could speak.
    if not priced and measured.kernel_profiles is None:
        for rule in rules:
            if rule in VERDICTS:
                apply(rule)
    return _ordered(_linked(findings)), failed


def _no_wider_than_half(finding: Finding) -> Finding:
    """The finding with its range about the same middle, as wide as half of what is lost where it was wider.

    A wider range decides nothing. One from 0 says that no low end is known, and stays.
    """
    low_ns, high_ns, cost_ns = finding.saving_low_ns, finding.saving_high_ns, finding.cost_ns
    if not low_ns or high_ns is None or cost_ns is None or high_ns - low_ns <= cost_ns // 2:
        return finding
    low_ns = (low_ns + high_ns - cost_ns // 2 + 1) // 2
    return msgspec.structs.replace(finding, saving_low_ns=low_ns, saving_high_ns=low_ns + cost_ns // 2)


def _linked(findings: list[Finding]) -> list[Finding]:
    """Mark each finding that another one explains: by its rule, or where both are at one line or in one function."""
    told = [finding for finding in findings if finding.severity != "info"]
    priced = {finding.rule for finding in told if finding.cost_ns is not None}
    lines = {(finding.rule, finding.file, finding.line) for finding in told if finding.line is not None}
    functions = {(finding.rule, finding.file, finding.function) for finding in told if finding.function is not None}
    linked = []
    for finding in findings:
        causes = [cause for cause in EXPLAINED_BY.get(finding.rule, ()) if cause in priced]
        at_line = EXPLAINED_AT_LINE.get(finding.rule, ())
        causes += [cause for cause in at_line if (cause, finding.file, finding.line) in lines]
        inside = EXPLAINED_IN_FUNCTION.get(finding.rule, ())
        causes += [cause for cause in inside if (cause, finding.file, finding.function) in functions]
        linked.append(msgspec.structs.replace(finding, follows=causes[0]) if causes else finding)
    return linked


def _ordered(findings: list[Finding]) -> tuple[Finding, ...]:
    """By `_order`, and what another one explains right behind that one, however large it is."""
    alone = sorted((finding for finding in findings if finding.follows is None), key=_order)
    explained = sorted((finding for finding in findings if finding.follows is not None), key=_order)
    ordered = list(alone)
    # A cause may be explained itself: it is put into place first, in as many rounds as there are links.
    while explained:
        placed = {finding.rule for finding in ordered}
        ready = [finding for finding in explained if finding.follows in placed] or explained
        for finding in reversed(ready):
            cause = next((at for at, other in enumerate(ordered) if other.rule == finding.follows), len(ordered) - 1)
            ordered.insert(cause + 1, finding)
        explained = [finding for finding in explained if finding not in ready]
    return tuple(ordered)


def _order(finding: Finding) -> tuple[int, int]:
    """By lost time; what has no price comes after what has one, and before what is told for information."""
    group = 2 if finding.severity == "info" else 1 if finding.cost_ns is None else 0
    return group, -(finding.cost_ns or 0)


def _verdict(findings: tuple[Finding, ...], measured: Measured, whole: Whole | None) -> str:
    priced = [f for f in findings if f.severity != "info" and f.cost_ns is not None and f.follows is None]
    unpriced = sum(1 for f in findings if f.severity != "info" and f.cost_ns is None and f.follows is None)
    if measured.kernel_profiles is not None:
        parts = [_profiled(measured.kernel_profiles, findings)]
    elif priced and whole is not None:
        parts = [_dominates(measured, whole), _first(priced, whole), _planned(priced, measured)]
    else:
        speaking = {rule.ID for rule in VERDICTS}
        parts = [f.message for f in findings if f.rule in speaking] or ["No rule found a problem with a price."]
        if whole is not None and any(f.rule in _HEALTHY for f in findings):
            parts.insert(0, _nothing_above(findings, measured, whole))
    if unpriced:
        parts.append(f"{unpriced} finding{'s have' if unpriced > 1 else ' has'} no price here.")
    return " ".join(part for part in parts if part)


def _profiled(profiles: KernelProfiles, findings: tuple[Finding, ...]) -> str:
    """How many kernels were profiled, which one took most of the time, and how near it comes to its device's peaks."""
    named: dict[str, float] = {}
    for row in profiles.rows:
        named[row.name] = named.get(row.name, 0.0) + (row.share or 0.0)
    most = max(named, key=lambda name: named[name])
    row = next(row for row in profiles.rows if row.name == most)
    of = f", {ms(profiles.total_ns)} together" if profiles.total_ns is not None else ""
    kernels = f"{len(named):,} kernel{'s' if len(named) > 1 else ''}"
    launches = f"{profiles.launches:,} launch{'es' if profiles.launches > 1 else ''}"
    least = "most of the time" if profiles.total_ns is not None else "most launches"
    parts = {"compute": row.compute, "memory": row.memory, "DRAM": row.dram}
    peaks = ", ".join(f"{name} {percent(part, 1)}" for name, part in parts.items() if part is not None)
    sentence = (
        f"{kernels} in {launches}{of}, {least} in {short_name(most)[:60]} ({percent(named[most], 1)})"
        f"{f': {peaks} of peak' if peaks else ''}."
    )
    if findings:
        return sentence
    large = [row for row in profiles.rows if (row.share or 0.0) >= NEGLIGIBLE]
    if any(row.compute is None or row.memory is None for row in large):
        return f"{sentence} How good they are cannot be told: the report does not hold their throughput."
    return f"{sentence} No kernel with 5% or more of it waits, spills, or leaves the memory unused."


def _nothing_above(findings: tuple[Finding, ...], measured: Measured, whole: Whole) -> str:
    """How much could still be gained without having been told: the largest of three.

    What a problem costs at least to be told; how well the step's length is known (two standard errors of its mean,
    with the deviation from its 10th and 90th percentile); and the most that a finding told for information may gain.
    """
    above, how = NEGLIGIBLE, ""
    step = measured.step or measured.trace_step
    if step is not None and step.steps and step.wall_ns > 0:
        deviation_ns = (step.p90_ns - step.p10_ns) / _P10_TO_P90
        unsure = 2 * deviation_ns / math.sqrt(step.steps) / step.wall_ns
        if unsure > above:
            above, how = unsure, f" (the step's length is known to that from {step.steps} steps)"
    for finding in findings:
        possible = (finding.saving_high_ns or 0) / whole.wall_ns
        if possible > above:
            above, how = possible, f" (that may be in {finding.rule})"
    return f"Nothing to gain here above {percent(above, 1)}{how}."


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
    gain = between(first.saving_low_ns or 0, first.saving_high_ns or 0)
    share = percent(first.saving_high_ns or 0, whole.wall_ns)
    of = "per step" if whole.per == "step" else "of it"
    sentence = f"Start with {first.rule}{at}: it gains {gain} {of} ({share} at most)"
    if len(priced) == 1:
        return f"{sentence}."
    # Gains are of one step: findings may cost the same time, and no sum gains more than all of it.
    total_ns = min(whole.wall_ns, sum(finding.saving_high_ns or 0 for finding in priced))
    together = "both" if len(priced) == 2 else f"all {len(priced)}"
    return f"{sentence}, {together} together {ms(total_ns)} at most."


def _planned(priced: list[Finding], measured: Measured) -> str:
    """The same for the run, where its length is known and the step is one outside windows."""
    if measured.planned_steps is None or measured.step is None:
        return ""
    # The mean of all steps, for those with a validation or a checkpoint in them are part of the run.
    step_ns = (measured.every_step or measured.step).wall_ns
    wall_ns = step_ns * measured.planned_steps
    gain_ns = min(priced[0].saving_high_ns or 0, step_ns) * measured.planned_steps
    return (
        f"Over the planned {measured.planned_steps:,} steps that is up to {duration(gain_ns)} of {duration(wall_ns)}."
    )


def _figures(measured: Measured, whole: Whole | None) -> Figures:
    ops, syncs, kernels, rank = measured.ops, measured.syncs, measured.kernels, measured.rank
    counted = [event.per_step for event in syncs.events if event.per_step is not None] if syncs else []
    launched = [launches.count / launches.steps for launches in measured.launches if launches.steps]
    lines = measured.lines.rows if measured.lines is not None else ()
    source_lines = measured.source_lines.lines if measured.source_lines is not None else ()
    return Figures(
        wall_ns=whole.wall_ns if whole is not None else None,
        ops_per_step=ops.count / ops.steps if ops is not None and ops.steps else None,
        launches_per_step=sum(launched) if launched else None,
        syncs_per_step=sum(counted) if syncs is not None and syncs.observed and syncs.steps else None,
        graph_breaks=sum(rank.graph_breaks.values()) if rank is not None else None,
        planned_steps=measured.planned_steps,
        throughput=measured.throughput,
        utilization=measured.utilization,
        trace=measured.trace,
        devices=measured.devices,
        launches=measured.launches,
        communication=measured.communication,
        copies=measured.copies,
        memory=measured.memory,
        roofline=measured.roofline,
        ops=tuple(sorted(ops.rows, key=lambda row: -row.self_ns)[:_ROWS]) if ops is not None else (),
        ranges=tuple(sorted(measured.ranges, key=lambda row: -row.host_ns)[:_ROWS]),
        kernels=kernels.rows[:_ROWS] if kernels is not None else (),
        kernel_profiles=_longest(measured.kernel_profiles),
        kernel_classes_ns=kernels.classes_ns if kernels is not None else {},
        api_calls=tuple(sorted(measured.api_calls, key=lambda row: -row.total_ns)[:_ROWS]),
        lines=tuple(sorted(lines, key=lambda row: -row.host_ns)[:_ROWS]),
        source_lines=source_lines[:_ROWS],
        syncs=tuple(sorted(syncs.events, key=lambda event: -event.count)[:_ROWS]) if syncs is not None else (),
    )


def _longest(profiles: KernelProfiles | None) -> KernelProfiles | None:
    return msgspec.structs.replace(profiles, rows=profiles.rows[:_PROFILES]) if profiles is not None else None


def _overhead(measured: Measured) -> Overhead | None:
    rank = measured.rank
    own_ns = round(rank.overhead_ns / rank.steps) if rank and rank.overhead_ns is not None and rank.steps else None
    window_ns = measured.step.window_ns if measured.step is not None else None
    held_bytes = rank.overhead_bytes if rank is not None else None
    if own_ns is None and window_ns is None and held_bytes is None:
        return None
    return Overhead(step_ns=own_ns, window_step_ns=window_ns, held_bytes=held_bytes)
