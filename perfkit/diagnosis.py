"""The diagnosis as data: where a step spends its time, what is wrong, and what changing it would save."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from perfkit._format import ms, percent, shown_places
from perfkit._html import html_bar, html_table, html_text
from perfkit._text import printable
from perfkit._versioned_json import decode_versioned, json_text
from perfkit.errors import UsageError
from perfkit.findings import Finding, Outcome
from perfkit.ledger.ledger import ClaimedLedger
from perfkit.ledger.ledger_text import account_parts, nearness, parts_table, rows_table
from perfkit.ledger.step_budget import NEGLIGIBLE, StepBudget
from perfkit.measures.host.phase_scale import scaled_rows
from perfkit.measures.results.completeness import Completeness
from perfkit.measures.results.device import Communication, CopyTime, DeviceTime, Launches
from perfkit.measures.results.host import Ops, OpTime, RangeTime, SourceLine, SourceLines, distinct_ranges
from perfkit.measures.results.kernel_profiles import KernelProfiles
from perfkit.measures.results.kernels import ApiCall, Kernels, KernelTime, Roofline
from perfkit.measures.results.measurements import Measurements, PlannedSteps, TraceFacts
from perfkit.measures.results.memory import DeviceMemory
from perfkit.measures.results.peak_memory import CheckpointTrade, PeakMemory
from perfkit.measures.results.steps import StepBreakdown, Throughput, TracedStep, TypicalStep, Utilization
from perfkit.rules._engine import Rule, RuleNotAsked, find_rules, run_rules
from perfkit.run.records import PHASES, EnergyUse, LineRow, Lines, Phases, Rank, SyncEvent, Syncs
from perfkit.verdict import verdict_of

if TYPE_CHECKING:
    from perfkit.ranks.diagnosing import RanksDiagnosis

#: Version of diagnosis.json. 1: the first. 2: savings, and the place of a finding as one location.
#: 3: the ledger, and where to change. Others are
#: refused: the run can be diagnosed again.
SCHEMA = 3

#: Rows of each table that a diagnosis keeps: as many as a person reads.
_ROWS = 30
#: Kernels of an Nsight Compute report that are kept: each was chosen to be profiled, and reports are compared by them.
_PROFILES = 1000


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers behind the findings, for tables and drawings.

    ``wall_ns`` is what all costs are part of: one mean step if ``Diagnosis.step`` is known, else the
    recording. ``ops``, ``ranges``, ``kernels``, ``api_calls`` and ``source_lines`` are the longest ones, in
    totals of the trace. ``lines`` are the hottest by sampling, per step. ``graph_breaks`` are of the run.
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
    peak_memory: tuple[PeakMemory, ...] = ()
    checkpoint_trades: tuple[CheckpointTrade, ...] = ()
    roofline: tuple[Roofline, ...] = ()
    ops: tuple[OpTime, ...] = ()
    ranges: tuple[RangeTime, ...] = ()
    kernels: tuple[KernelTime, ...] = ()
    kernel_profiles: KernelProfiles | None = None
    kernel_classes_ns: dict[str, int] = {}
    api_calls: tuple[ApiCall, ...] = ()
    lines: tuple[LineRow, ...] = ()
    source_lines: tuple[SourceLine, ...] = ()
    syncs: tuple[SyncEvent, ...] = ()
    energy: tuple[EnergyUse, ...] = ()

    @property
    def distinct_ranges(self) -> list[RangeTime]:
        """Each range once, see `perfkit.measures.results.host.distinct_ranges`."""
        return distinct_ranges(self.ranges)


class Overhead(msgspec.Struct, frozen=True, kw_only=True):
    """What perfkit itself cost: its time per step, the mean step in a window, and the maximum memory it held.

    ``fixed_ns`` is its processor time that came once, by what it was for (`Rank.fixed_overhead_ns`); what the verdict
    itself took is in there when the run is diagnosed again.
    """

    step_ns: int | None = None
    fixed_ns: dict[str, int] = {}
    window_step_ns: int | None = None
    held_bytes: int | None = None


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict, the step and its phases, and the findings by what their correction saves.

    ``outcome`` is the verdict in a word. ``ledger`` is the step's time by owner, with what the findings claim of it;
    None where nothing has a length. ``step`` is None if no steps were marked; the findings' times are then of the
    recording. ``not_asked`` are the rules that could not be asked, with what has to be recorded for them. ``missing``
    has a sentence for each part that could not be measured.
    """

    schema: int = SCHEMA
    source: str
    verdict: str
    outcome: Outcome = "unexplained"
    ledger: ClaimedLedger | None = None
    step: StepBreakdown | None = None
    phases: Phases | None = None
    findings: tuple[Finding, ...] = ()
    not_asked: tuple[RuleNotAsked, ...] = ()
    figures: Figures = Figures()
    missing: tuple[str, ...] = ()
    overhead: Overhead | None = None

    @property
    def phase_times(self) -> dict[str, int]:
        """The time per step (ns) of each phase that took any, in the order of `PHASES`; empty without phases."""
        return {name: ns for name in PHASES if self.phases is not None and (ns := getattr(self.phases, name))}

    @property
    def causes(self) -> list[tuple[Finding, tuple[Finding, ...]]]:
        """The findings that no other one explains, each with those that it explains.

        Where a rule has several findings, the first one has all that the rule explains.
        """
        explained: dict[str | None, tuple[Finding, ...]] = {}
        for finding in self.findings:
            explained[finding.follows] = (*explained.get(finding.follows, ()), finding)
        return [(finding, explained.pop(finding.rule, ())) for finding in explained.pop(None, ())]

    @property
    def shown_ledger(self) -> ClaimedLedger | None:
        """The ledger, None where there is none or the recording is incomplete: a part of a step explains nothing."""
        return self.ledger if self.outcome != "cannot-tell" else None

    def to_json(self) -> str:
        """The text of diagnosis.json."""
        return json_text(self)

    @classmethod
    def from_json(cls, text: str | bytes) -> Diagnosis:
        """Read a diagnosis back.

        Raises:
            RunError: the text is not a diagnosis, or one of another schema.
        """
        return decode_versioned(text, cls, SCHEMA, "the diagnosis", "diagnose its run again")

    def __repr__(self) -> str:
        return printable(f"<diagnosis of {self.source}: {self.verdict}>")

    def _repr_html_(self) -> str:
        """For notebooks: the verdict, the phases and the ledger as bars, the findings as a table; no script."""
        times = self.phase_times
        findings = [
            (
                finding.rule,
                shown_places(finding),
                ms(finding.cost_ns) if finding.cost_ns is not None else "",
                finding.message,
                finding.advice,
            )
            for finding, _ in self.causes
        ]
        parts = [f"<p><b>{html_text(self.verdict)}</b></p>"]
        shown = {name: f"{ms(ns)} {percent(ns, sum(times.values()))}" for name, ns in times.items()}
        parts.append(html_bar("step", times, shown))
        if (ledger := self.shown_ledger) is not None:
            account = account_parts(ledger)
            shown = {name: percent(ns, ledger.ledger.wall_ns) for name, ns in account.items()}
            parts += [html_bar("what accounts for it", account, shown), f"<p>{html_text(nearness(ledger))}</p>"]
            table = parts_table(ledger) if self.outcome == "unexplained" else rows_table(ledger, NEGLIGIBLE)
            parts.append(html_table(table.head, table.rows))
        if findings:
            parts.append(html_table(("finding", "where", "cost", "problem", "change"), findings))
        return "".join((*parts, *(f"<p><i>Note: {html_text(sentence)}</i></p>" for sentence in self.missing)))


def diagnose(source: str | os.PathLike[str] | Measurements, *, rules: Sequence[Rule] | None = None) -> Diagnosis:
    """Find what a training step spends time on that it could save.

    ``source`` is a run folder, a Kineto trace, an nsys SQLite export, a report of ncu, or what was measured from one.
    ``rules`` replaces the rules that are run (default: all). Writes nothing.

    Raises:
        TraceError, RunError: the path is missing, or neither a run nor a trace.
    """
    if isinstance(source, Measurements):
        found = source
    else:
        # Loads numpy, which `perfkit run` must leave to the program it runs until that is over.
        from perfkit.measures.gathering import measure

        found = measure(source)
    # A report of kernels that were profiled one by one holds no step that a verdict could be about.
    with_verdicts = found.get(KernelProfiles) is None
    results = run_rules(find_rules() if rules is None else rules, found, verdicts=with_verdicts)
    findings, budget = tuple(results.findings), StepBudget.from_measurements(found)
    verdict = verdict_of(findings, found, budget, results.ledger)
    facts, completeness = found.get(TraceFacts), found.get(Completeness)
    lacks = [one.sentence for one in completeness.problems if one not in completeness.named] if completeness else []
    missing = (*found.missing, *(facts.lost if facts is not None else ()), *lacks, *results.failed)
    step: StepBreakdown | None = found.get(TypicalStep) or found.get(TracedStep)
    return Diagnosis(
        source=found.source,
        verdict=verdict.text,
        outcome=verdict.outcome,
        ledger=results.ledger,
        step=step,
        phases=step.phases_ns if step is not None else None,
        findings=findings,
        not_asked=results.not_asked,
        figures=_figures(found, budget),
        missing=tuple(one for one in missing if one.rstrip(".").lower() not in verdict.text.lower()),
        overhead=_overhead(found),
    )


def diagnose_ranks(
    path: str | os.PathLike[str], executor: Executor | None = None, resume: bool = False
) -> RanksDiagnosis:
    """Find which ranks of a job the others wait for, why, and what that costs.

    Args:
        path: A run folder of several ranks, or a folder or pattern of traces (Kineto or nsys, one for each rank), also
            as a URL for fsspec (``s3://bucket/run``).
        executor: Where each rank's files are read: any `concurrent.futures.Executor`, as Dask's
            ``client.get_executor()``. Default: processes, at most one for each core.
        resume: Take what an earlier call made of the same files, as far as it came.

    Raises:
        RunError: nothing exists at the path, nothing there has a rank, or the executor ended before the work did.
        UsageError: no file system supports the URL, or the executor is none.
        MissingDependency: fsspec needs another package for this kind of URL.
    """
    if executor is not None and not isinstance(executor, Executor):
        raise UsageError(f"executor must be a concurrent.futures.Executor, got {type(executor).__name__}")
    # They load numpy, see above.
    from perfkit.ranks.path_diagnosis import diagnose_sources
    from perfkit.ranks.rank_sources import find_ranks

    return diagnose_sources(find_ranks(path), executor, resume=resume).diagnosis


def _figures(found: Measurements, budget: StepBudget | None) -> Figures:
    """The measures that a field of `Figures` is named for by its type, and what is derived from others."""
    plain: dict[str, Any] = {}
    for field in msgspec.structs.fields(Figures):
        kinds = [kind for kind in get_args(field.type) if isinstance(kind, type) and issubclass(kind, msgspec.Struct)]
        if kinds:
            values = found.all(kinds[0])
            plain[field.name] = values if field.default == () else next(iter(values), None)
    ops, syncs, kernels = found.get(Ops), found.get(Syncs), found.get(Kernels)
    lines, source_lines, rank = found.get(Lines), found.get(SourceLines), found.get(Rank)
    profiles, planned = found.get(KernelProfiles), found.get(PlannedSteps)
    synced = [event.per_step for event in syncs.events if event.per_step is not None] if syncs is not None else []
    launched = [launches.count / launches.steps for launches in found.all(Launches) if launches.steps]
    derived = {
        "wall_ns": budget.wall_ns if budget is not None else None,
        "ops_per_step": ops.count / ops.steps if ops is not None and ops.steps else None,
        "launches_per_step": sum(launched) if launched else None,
        "syncs_per_step": sum(synced) if syncs is not None and syncs.observed and syncs.steps else None,
        "graph_breaks": sum(rank.graph_breaks.values()) if rank is not None else None,
        "planned_steps": planned.count if planned is not None else None,
        "ops": _longest(ops.rows if ops is not None else (), "self_ns"),
        "ranges": _longest(found.all(RangeTime), "host_ns"),
        "kernels": kernels.rows[:_ROWS] if kernels is not None else (),
        "kernel_profiles": profiles and msgspec.structs.replace(profiles, rows=profiles.rows[:_PROFILES]),
        "kernel_classes_ns": kernels.classes_ns if kernels is not None else {},
        "api_calls": _longest(found.all(ApiCall), "total_ns"),
        "lines": _longest(scaled_rows(lines, found.get(TypicalStep)) if lines is not None else (), "host_ns"),
        "source_lines": source_lines.lines[:_ROWS] if source_lines is not None else (),
        "energy": rank.energy if rank is not None else (),
        "syncs": _longest(syncs.events if syncs is not None else (), "count"),
    }
    return Figures(**(plain | derived))


def _longest(rows: Sequence[Any], field: str) -> tuple[Any, ...]:
    return tuple(sorted(rows, key=lambda row: -getattr(row, field))[:_ROWS])


def _overhead(found: Measurements) -> Overhead | None:
    rank, step = found.get(Rank), found.get(TypicalStep)
    own_ns = round(rank.overhead_ns / rank.steps) if rank and rank.overhead_ns is not None and rank.steps else None
    window_ns = step.window_ns if step is not None else None
    held_bytes = rank.overhead_bytes if rank is not None else None
    if own_ns is None and window_ns is None and held_bytes is None:
        return None
    fixed_ns = (rank.fixed_overhead_ns or {}) if rank is not None else {}
    return Overhead(step_ns=own_ns, fixed_ns=fixed_ns, window_step_ns=window_ns, held_bytes=held_bytes)
