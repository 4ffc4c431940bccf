"""What all reports of many ranks say alike: what was compared, who is late and when, and what to open and do next."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from perfkit._format import duration, ms, percent, shown_path

if TYPE_CHECKING:
    from perfkit.ranks.diagnosing import RankLateness, RanksDiagnosis
    from perfkit.ranks.late_causes import Cause
    from perfkit.ranks.late_ranks import LateFinding
    from perfkit.ranks.path_diagnosis import DiagnosedRanks

_MEASURED = {"waited": "from rows", "collectives": "from traces", "phases": "from phases without collectives"}
_OF_A_RANK = re.compile(r"(rank \d+): (.*)", re.DOTALL)
_WHEN = {"persistent": "most steps", "recurrent": "some steps", "once": "once"}
#: What to look at first, by what makes a rank late.
_NEXT: dict[Cause, str] = {
    "data": "look at the loader, the shards and the storage of {who}",
    "work": "give every rank equal work: batches of equal tokens, or a sampler that groups by length",
    "kernels": "check clocks, temperature and other programs on the device of {who}",
    "more work": "give {who} less to do: move layers to other stages or ranks",
    "computing": "compare what {who} computes with the others, then clocks and what else runs there",
    "host": "look for Python, callbacks and logging on {who}, and for other programs on the cores there",
    "validation": "let all ranks validate at the same step, or none inside training",
    "checkpoint": "write checkpoints in the background, or from all ranks at once",
    "gc": "collect at the same step on all ranks: gc.disable(), and gc.collect() every N steps",
    "link": "test the network of {who}, as with nccl-tests, and look for other programs on the cores there",
    "unknown": "record a window on {who} and on another rank: perfkit trigger RUN --all",
}


def what_was_compared(diagnosis: RanksDiagnosis) -> str:
    """The path, and how many ranks and steps of it, in one line."""
    parts = [shown_path(diagnosis.source)]
    if diagnosis.ranks:
        of = f" of {diagnosis.world_size:,}" if diagnosis.world_size is not None else ""
        hosts = len({one.host for one in diagnosis.ranks})
        parts.append(f"{len(diagnosis.ranks):,}{of} ranks" + (f" on {hosts:,} hosts" if hosts > 1 else ""))
    if diagnosis.steps:
        parts.append(
            f"{diagnosis.steps:,} steps from {diagnosis.first_step:,} to {diagnosis.last_step:,}"
            if diagnosis.steps > 1
            else f"step {diagnosis.first_step:,}"
        )
    if diagnosis.measured_by is not None:
        parts.append(_MEASURED[diagnosis.measured_by])
    return " · ".join(parts)


def where_a_step_goes(diagnosis: RanksDiagnosis, wall_ns: int) -> str:
    """A step, and the waiting and the transfers in it."""
    times = {"waiting for later ranks": diagnosis.waiting_ns, "transfer": diagnosis.transfer_ns}
    parts = [f"{name} {ms(ns)} ({percent(ns, wall_ns)})" for name, ns in times.items() if ns is not None]
    return f"Step {ms(wall_ns)}: " + (", ".join(parts) or "waiting was not measured")


def how_clocks_agree(diagnosis: RanksDiagnosis) -> str:
    """How far the clocks of the hosts are apart, and how exactly that is known."""
    clocks = diagnosis.clocks
    residual = max(clock.residual_ns for clock in clocks)
    apart = max(clock.offset_ns for clock in clocks) - min(clock.offset_ns for clock in clocks)
    of = f"{len(clocks):,} hosts, {duration(apart)} apart" if len(clocks) > 1 else "1 host"
    return f"clocks of {of}: aligned to {ms(residual)}"


def late_ranks(diagnosis: RanksDiagnosis) -> list[int]:
    """The ranks that findings name, the costliest first."""
    return list(dict.fromkeys(rank for finding in diagnosis.findings for rank in finding.ranks))


def waits_most(diagnosis: RanksDiagnosis) -> RankLateness | None:
    """The rank that waits most for the others; None where waiting was not measured."""
    known = [one for one in diagnosis.ranks if one.waiting_ns is not None]
    return max(known, key=lambda one: one.waiting_ns or 0, default=None)


def who(finding: LateFinding) -> str:
    """What is late, in a few words."""
    if not finding.ranks:
        return "another rank each time"
    if finding.subject == "host" and finding.hosts:
        return f"host {finding.hosts[0]}"
    some = ", ".join(map(str, finding.ranks[:4])) + (", ..." if len(finding.ranks) > 4 else "")
    return f"{'ranks' if len(finding.ranks) > 1 else 'rank'} {some}"


def when(finding: LateFinding) -> str:
    """In how many steps it is late."""
    return _WHEN[finding.shape] + (f" ({percent(finding.step_share, 1.0)})" if finding.shape != "once" else "")


def notes_of(missing: Sequence[str]) -> list[str]:
    """The sentences on what is missing; what several ranks lack is one."""
    ranks: dict[str, list[str]] = {}
    for sentence in missing:
        match = _OF_A_RANK.fullmatch(sentence)
        ranks.setdefault(match[2] if match else sentence, []).append(match[1] if match else "")
    return [
        f"{f'{len(of):,} ranks' if len(of) > 1 else of[0]}: {what}" if of[0] else what for what, of in ranks.items()
    ]


class WorthOpening(NamedTuple):
    """A rank whose recording shows more, the path of its trace if it has one, and why."""

    rank: int
    why: str
    trace: str | None


def worth_opening(found: DiagnosedRanks) -> list[WorthOpening]:
    """A late rank, the one that waits most, and an ordinary one; nothing where none is late."""
    diagnosis = found.diagnosis
    if diagnosis.outcome != "late":
        return []
    by_own = sorted(diagnosis.ranks, key=lambda one: one.own_ns)
    late = late_ranks(diagnosis)
    waiting = waits_most(diagnosis)
    wanted = {late[0]: "late"} if late else {max(by_own, key=lambda one: one.given_ns).rank: "last most often"}
    if waiting is not None:
        wanted.setdefault(waiting.rank, "waits most")
    ordinary = next((one.rank for one in by_own[len(by_own) // 2 :] if one.rank not in (*wanted, *late)), None)
    if ordinary is not None:
        wanted[ordinary] = "ordinary"
    return [WorthOpening(rank, why, found.traces.get(rank)) for rank, why in wanted.items()]


def advice(finding: LateFinding) -> str:
    """What to look at first."""
    if finding.gpu:
        return finding.gpu
    return _NEXT[finding.cause].format(who=who(finding) if finding.ranks else "all ranks")


def next_step(found: DiagnosedRanks) -> str:
    """What to do after reading the verdict."""
    diagnosis = found.diagnosis
    if diagnosis.findings:
        return advice(diagnosis.findings[0])
    if diagnosis.outcome == "healthy":
        return "what a rank does by itself: perfkit diagnose " + shown_path(
            next(iter(found.traces.values()), diagnosis.source)
        )
    if found.absent:
        return "bring the files of all ranks into one folder; profile(ranks=range(N)) records windows on each"
    if diagnosis.measured_by is None:
        return "take the files of one job in which all ranks mark the same steps: prof.step() after each"
    return "record a window on all ranks: perfkit trigger RUN --all, or profile(ranks=range(N))"
