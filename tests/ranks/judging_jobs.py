"""Whether a diagnosis of a planted job is right."""

from __future__ import annotations

from typing import NamedTuple

from perfkit.ranks.diagnosing import RanksDiagnosis
from perfkit.ranks.rank_columns import RankColumns
from tests.ranks.planted_jobs import Plan, PlantedJob

#: What was planted -> the causes that name it: in rows computing is one, traces have its kernels.
_IN_ROWS = {"kernels": "computing", "slow host": "computing", "last stage": "computing"}
_CAUSES = {
    "sequences": ("work",),
    "kernels": ("kernels",),
    "slow host": ("kernels",),
    "last stage": ("more work",),
    "gc of all": ("gc",),
    "once": ("data", "host"),
}
_SHAPES = {"once": ("once",), "checkpoint": ("recurrent",), "gc": ("recurrent",)}
#: The ranks of a slow link may be those of one host.
_SUBJECTS = {"last stage": ("stage",), "slow host": ("host",), "link": ("group", "host")}
#: Of several planted ranks at least this share is named, and no other.
_NAMED = 0.5


class Judged(NamedTuple):
    """``error`` is that of the slowdown, as a share of what it truly is; None where the first finding is wrong."""

    right: bool
    error: float | None


def judge(job: PlantedJob, found: RanksDiagnosis) -> Judged:
    """Compare the first finding with what was planted; of a rank that was not read nothing can be told."""
    read = {one.rank: one for one in job.ranks}
    if job.plan.late and not read.keys() & set(job.plan.late):
        return Judged(found.outcome == "cannot-tell", None)
    if not found.findings:
        return Judged(False, None)
    first = found.findings[0]
    causes, subjects = expected(job.plan)
    named, planted = set(first.ranks), set(job.plan.late or ())
    if named and not any(_recorded(read[rank], job.plan.cause) for rank in named):
        causes = ("computing",)
    right = first.cause in causes and first.subject in subjects and named <= planted
    right = right and len(named) >= _NAMED * len(planted)
    right = right and first.shape in _SHAPES.get(job.plan.cause or "", (first.shape,))
    return Judged(right, first.slowdown / job.slowdown - 1 if right else None)


def _recorded(rank: RankColumns, cause: str | None) -> bool:
    """Whether a rank recorded what the cause shows in; older versions have neither work nor collections."""
    column = {"work": rank.work, "gc": rank.gc_ns}.get(cause or "")
    return column is None or bool((column >= 0).any())


def expected(plan: Plan) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The causes and subjects that are right for a job."""
    cause = plan.cause or ""
    causes = (_IN_ROWS[cause],) if plan.from_rows and cause in _IN_ROWS else _CAUSES.get(cause, (cause,))
    subjects = _SUBJECTS.get(cause, ("job",) if plan.late is None else ("rank",))
    if cause == "last stage" and plan.from_rows and len(plan.late or ()) == plan.per_host:
        subjects = ("stage", "host")  # the last host may as well be a slow one: rows have no kernels
    return causes, subjects
