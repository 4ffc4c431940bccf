"""All ranks of a job as one diagnosis: who the others wait for, why, and what that costs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from perfkit._format import ms, percent
from perfkit._text import printable
from perfkit._versioned_json import decode_versioned, json_text
from perfkit.ranks._rank_statistics import least_of
from perfkit.ranks._rank_steps import OwnTimeFrom
from perfkit.ranks.clocks import AlignedClocks, HostClock, align_clocks
from perfkit.ranks.collectives import Meetings
from perfkit.ranks.late_ranks import NEGLIGIBLE, LateFinding, LateRanks
from perfkit.ranks.lateness_map import LatenessMap, lateness_map
from perfkit.ranks.rank_columns import RankColumns
from perfkit.ranks.step_times import StepTimes, read_steps

#: Version of a ranks diagnosis as JSON.
SCHEMA = 1

RanksOutcome = Literal["late", "healthy", "cannot-tell"]

#: Communication that is not waiting for a rank that was read, as a share of the step, from which on a missing rank may
#: be what all the others wait for.
_UNEXPLAINED = 0.1


class RankLateness(msgspec.Struct, frozen=True, kw_only=True):
    """One rank, means per step. None: not measured.

    ``own_ns`` is its time without waiting, ``waiting_ns`` what it waited for later ranks, ``given_ns`` what all the
    others waited in the steps in which it was the last, and ``last_share`` the share of those steps.
    """

    rank: int
    host: str
    own_ns: int
    waiting_ns: int | None
    given_ns: int
    last_share: float


class RanksDiagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The ranks of a job compared.

    Attributes:
        verdict: One sentence; ``outcome`` is it in a word.
        wall_ns: A step. Of it ``waiting_ns`` is spent waiting for later ranks (mean of the ranks), ``transfer_ns`` in
            the transfers themselves; None where that is not known.
        jitter_ns: What the last rank of a step costs where none is late: it is another one each time.
        first_step, last_step, steps: The steps that were compared, and their number.
        measured_by: How a rank's own time is known (`perfkit.ranks.step_times`); None where nothing was compared.
        findings: What is late, by what the job would save.
        clocks: Of each host; empty without collectives that hosts share.
        missing: A sentence for each thing that could not be compared or is not known.
    """

    schema: int = SCHEMA
    source: str
    verdict: str
    outcome: RanksOutcome
    world_size: int | None = None
    wall_ns: int | None = None
    waiting_ns: int | None = None
    transfer_ns: int | None = None
    jitter_ns: int | None = None
    steps: int = 0
    first_step: int | None = None
    last_step: int | None = None
    measured_by: OwnTimeFrom | None = None
    findings: tuple[LateFinding, ...] = ()
    ranks: tuple[RankLateness, ...] = ()
    clocks: tuple[HostClock, ...] = ()
    missing: tuple[str, ...] = ()

    def to_json(self) -> str:
        """The diagnosis as JSON."""
        return json_text(self)

    @classmethod
    def from_json(cls, text: str | bytes) -> RanksDiagnosis:
        """Read a diagnosis back.

        Raises:
            RunError: the text is not a diagnosis of ranks, or one of another schema.
        """
        return decode_versioned(text, cls, SCHEMA, "the diagnosis of the ranks", "diagnose its ranks again")

    def __repr__(self) -> str:
        return printable(f"<diagnosis of {len(self.ranks):,} rank(s) of {self.source}: {self.verdict}>")


class ComparedRanks(NamedTuple):
    """A diagnosis, and what a page draws beside it; None where nothing was compared, or there were no collectives.

    ``clocks`` has the ranks in the order of their numbers.
    """

    diagnosis: RanksDiagnosis
    lateness: LatenessMap | None
    clocks: AlignedClocks | None


def diagnose_columns(ranks: Iterable[RankColumns], source: str = "", lost: Sequence[str] = ()) -> RanksDiagnosis:
    """The diagnosis of `compare_columns`."""
    return compare_columns(ranks, source, lost).diagnosis


def compare_columns(ranks: Iterable[RankColumns], source: str = "", lost: Sequence[str] = ()) -> ComparedRanks:
    """Compare ranks whose columns are at hand; they are read one after the other, and each once.

    Args:
        ranks: The columns of each rank.
        source: What they were made from, for the diagnosis.
        lost: Sentences on ranks that could not be read.
    """
    facts = _JobFacts(lost)
    rows = read_steps(facts.of_each(ranks))
    meetings = rows.collectives.match()
    times = rows.times(meetings)
    missing = [*facts.sentences(), *(meetings.lost if meetings is not None else ())]
    aligned = _aligned(meetings, len(rows.ranks), missing, recorded=facts.with_collectives)
    clocks = aligned.by_host([one.host for one in rows.ranks]) if aligned is not None else ()
    if times is None:
        reason = facts.why_nothing()
        nothing = RanksDiagnosis(
            source=source,
            verdict=f"Cannot tell which rank is late: {reason}.",
            outcome="cannot-tell",
            world_size=facts.world_size,
            clocks=clocks,
            missing=tuple(missing),
        )
        return ComparedRanks(nothing, None, aligned)
    missing += times.lost
    late = LateRanks(times)
    findings = tuple(sorted(late.findings, key=lambda one: -one.saving_ns))
    # A rank that was cut short is as unknown as one that is missing.
    outcome, verdict = _verdict(times, findings, late.left_ns, (facts.world_size or 0) - times.ranks.size)
    waiting = _waiting(times)
    diagnosis = RanksDiagnosis(
        source=source,
        verdict=verdict,
        outcome=outcome,
        world_size=facts.world_size,
        wall_ns=round(times.wall_ns),
        waiting_ns=round(float(waiting.mean())) if waiting is not None else None,
        transfer_ns=round(times.transfer_ns) if times.transfer_ns is not None else None,
        jitter_ns=round(late.left_ns),
        steps=times.steps.size,
        first_step=int(times.steps[0]),
        last_step=int(times.steps[-1]),
        measured_by=times.source,
        findings=findings,
        ranks=_each_rank(times, waiting),
        clocks=clocks,
        missing=tuple(missing),
    )
    return ComparedRanks(diagnosis, lateness_map(times.own, times.ranks, times.steps), aligned)


class _JobFacts:
    """What is kept of the columns beside their times."""

    def __init__(self, lost: Sequence[str]) -> None:
        self.lost = list(lost)
        self.ranks: list[int] = []
        self.with_steps = 0
        self.world_size: int | None = None
        self.with_collectives = False

    def of_each(self, ranks: Iterable[RankColumns]) -> Iterable[RankColumns]:
        for columns in ranks:
            self.ranks.append(columns.rank)
            self.with_steps += bool(len(columns))
            self.with_collectives = self.with_collectives or bool(columns.collective_step.size)
            self.world_size = max(columns.world_size or 0, self.world_size or 0) or None
            if len(self.lost) < 100:  # ranks mostly lack the same
                self.lost += (f"rank {columns.rank}: {one}" for one in columns.lost)
            yield columns

    @property
    def absent(self) -> int:
        """Ranks of the job that were not read."""
        return max(0, (self.world_size or 0) - len(set(self.ranks)))

    def sentences(self) -> list[str]:
        if not self.absent:
            return self.lost
        return [f"{self.absent:,} of {self.world_size:,} ranks are missing", *self.lost]

    def why_nothing(self) -> str:
        if len(self.ranks) < 2:
            return f"at least two ranks are needed, and {len(self.ranks)} could be read"
        if self.with_steps < 2:
            return "no steps are marked (prof.step() after each, or record with perfkit)"
        return "no two ranks recorded the same steps with their phases, waiting or collectives"


def _aligned(meetings: Meetings | None, ranks: int, missing: list[str], *, recorded: bool) -> AlignedClocks | None:
    if meetings is None or not (meetings.meeting >= 0).any():
        if recorded:
            missing.append("no collective was found on two ranks, so the clocks of the hosts could not be aligned")
        return None
    aligned = align_clocks(meetings, ranks)
    left = int((~aligned.aligned).sum())
    if left:
        missing.append(
            f"the clocks of {left:,} rank(s) could not be aligned with the others'; durations do not depend on it"
        )
    return aligned


def _waiting(times: StepTimes) -> np.ndarray | None:
    """Waiting of each rank for later ones, mean per step."""
    if times.waited is None:
        return None
    waited = times.waited
    if times.source == "waited":  # its minimum over the ranks is the transfer
        waited = waited - least_of(waited)
    known = np.isfinite(waited)
    total: np.ndarray = np.where(known, waited, 0).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
    return total


def _each_rank(times: StepTimes, waiting: np.ndarray | None) -> tuple[RankLateness, ...]:
    known = np.isfinite(times.own)
    own = np.where(known, times.own, 0)
    last = own.argmax(axis=0)
    longest = own[last, np.arange(last.size)]
    waited = np.where(known, longest - own, 0).sum(axis=0)
    given = np.bincount(last, weights=waited, minlength=own.shape[0]) / last.size
    share = np.bincount(last, minlength=own.shape[0]) / last.size
    mean = own.sum(axis=1) / np.maximum(known.sum(axis=1), 1)
    return tuple(
        RankLateness(
            rank=int(rank),
            host=host,
            own_ns=round(float(mean[row])),
            waiting_ns=round(float(waiting[row])) if waiting is not None else None,
            given_ns=round(float(given[row])),
            last_share=float(share[row]),
        )
        for row, (rank, host) in enumerate(zip(times.ranks.tolist(), times.hosts, strict=True))
    )


def _verdict(
    times: StepTimes, findings: Sequence[LateFinding], left_ns: float, unknown: int
) -> tuple[RanksOutcome, str]:
    step = f"of the {ms(times.wall_ns)} step"
    if findings:
        return "late", f"{late_sentence(findings[0])} It costs {ms(findings[0].saving_ns)} {step}" + (
            f" ({percent(findings[0].saving_ns, times.wall_ns)})."
        )
    talking = times.transfer_ns or 0.0
    if unknown > 0 and talking > _UNEXPLAINED * times.wall_ns:
        return "cannot-tell", (
            f"Cannot tell which rank is late: all that were compared spend {percent(talking, times.wall_ns)} {step} in "
            f"communication, and may wait for one of the {unknown:,} that could not be."
        )
    if times.source == "phases":
        return "cannot-tell", (
            "Cannot tell whether a rank is late in its backward: the waiting there was not measured. "
            "In the phases in which ranks work alone none is."
        )
    rest = percent(left_ns, times.wall_ns)
    varies = f"; {rest} {step} waits for whichever rank is last" if left_ns > NEGLIGIBLE * times.wall_ns else ""
    return "healthy", f"No rank is late{varies}."


_WHY = {
    "data": "waits for its data",
    "work": "has larger batches",
    "kernels": "runs the same kernels slower",
    "more work": "runs more kernels",
    "computing": "computes longer",
    "host": "is held up by host work (Python, callbacks, logging)",
    "validation": "validates longer",
    "checkpoint": "writes checkpoints",
    "gc": "is held up by Python's garbage collector",
    "link": "has a slow link",
    "unknown": "is late for a reason that was not recorded",
}
_JOB = {
    "data": "Ranks wait for their data in turns",
    "work": "Batches are unequal: another rank has the largest one in each step",
    "validation": "Ranks validate at different times",
    "checkpoint": "Ranks write checkpoints at different times",
    "gc": "Python's garbage collector stops another rank each time",
    "link": "Transfers take longer than usual in some steps, on all ranks",
}


def late_sentence(finding: LateFinding) -> str:
    """What is late and why, as ``Rank 3 (node1) waits for its data in most steps``."""
    when = {"persistent": "in most steps", "recurrent": "in some steps", "once": "once"}[finding.shape]
    detail = f" ({finding.detail})" if finding.detail else ""
    if finding.subject == "job":
        return f"{_JOB.get(finding.cause, 'Another rank is late each time')}{detail}."
    hosts = ", ".join(finding.hosts[:3])
    ranks = ", ".join(map(str, finding.ranks[:8])) + (", ..." if len(finding.ranks) > 8 else "")
    if finding.subject == "host":
        who = f"Host {hosts} (ranks {ranks})"
    elif finding.subject == "stage":
        who = f"The last pipeline stage (ranks {ranks})"
    elif finding.subject == "group":
        who = f"The group of ranks {ranks}"
    else:
        who = f"{'Each of ranks' if len(finding.ranks) > 1 else 'Rank'} {ranks}" + (f" ({hosts})" if hosts else "")
    return f"{who} {_WHY[finding.cause]}{detail} {when}."
