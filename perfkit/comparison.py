"""What changed between two runs, and whether it is more than noise."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from perfkit.diagnosis import Diagnosis, diagnose
from perfkit.findings import Finding
from perfkit.rules.wording import change, ms
from perfkit.run.records import PHASES, Step

#: Version of a comparison's JSON.
SCHEMA = 1

Change = Literal["faster", "slower", "no difference", "not tested"]

#: Resamples of the bootstrap: enough that the ends of a 95% interval move by less than a tenth of its width.
_RESAMPLES = 2000

#: Share of the steps left out at each end, as `measures.steps_rows` does: one checkpoint is not a slower step.
_TRIM = 0.10

#: Fewer steps than this do not show how much steps differ.
_LEAST_STEPS = 8

Source: TypeAlias = "str | os.PathLike[str] | Diagnosis"


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One time per step before and after. ``name`` is ``step`` or a phase.

    ``low_ns`` .. ``high_ns`` is the 95% interval of after - before over the noise between steps, None
    where the single steps are not known; ``change`` is then "not tested". Noise between launches of the
    same program is not in it: that takes several runs.
    """

    name: str
    before_ns: int
    after_ns: int
    low_ns: int | None = None
    high_ns: int | None = None
    change: Change = "not tested"


class Count(msgspec.Struct, frozen=True, kw_only=True):
    """A number per step that does not flicker: syncs, ops."""

    name: str
    before: float
    after: float


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two diagnoses side by side: ``gone`` findings only the first has, ``new`` ones only the second."""

    schema: int = SCHEMA
    before: str
    after: str
    verdict: str
    differences: tuple[Difference, ...] = ()
    counts: tuple[Count, ...] = ()
    gone: tuple[Finding, ...] = ()
    new: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()

    def to_json(self) -> str:
        """The comparison as indented JSON."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1).decode()

    def __repr__(self) -> str:
        return f"<comparison of {self.before} with {self.after}: {self.verdict}>"


def compare(before: Source, after: Source) -> Comparison:
    """Compare two runs, traces, or diagnoses: step and phases, counts, findings gone and new.

    Differences are tested by a bootstrap over the single steps, which run folders hold; traces and
    `Diagnosis` objects hold means only, and their differences are "not tested".

    Raises:
        TraceError, RunError: a path is missing, or neither a run nor a trace.
    """
    first, second = (source if isinstance(source, Diagnosis) else diagnose(source) for source in (before, after))
    samples = _samples(before), _samples(after)
    notes = []
    if first.step is None or second.step is None:
        notes.append("one side marks no steps: times per step cannot be compared")
    elif not all(samples):
        notes.append("one side holds no single steps: its noise is unknown, and no difference is tested")
    else:
        notes.append("tested against the noise between steps; to see the noise between launches, repeat a run")
    differences = _differences(first, second, samples)
    return Comparison(
        before=first.source,
        after=second.source,
        verdict=_verdict(differences),
        differences=differences,
        counts=_counts(first, second),
        gone=_only_in(first, second),
        new=_only_in(second, first),
        notes=tuple(notes),
    )


def _samples(source: Source) -> list[Step]:
    """The training steps of a run folder's lowest rank that tell normal time: outside windows, not dry."""
    from perfkit.run.reading import is_run_folder, read_run

    if isinstance(source, Diagnosis) or not is_run_folder(Path(source)):
        return []
    ranks = read_run(Path(source)).ranks
    rows = ranks[min(ranks)].steps if ranks else []
    return [row for row in rows if row.mode == "train" and row.window is None and not row.dry]


def _mean(diagnosis: Diagnosis, name: str) -> int | None:
    if diagnosis.step is None:
        return None
    if name == "step":
        return diagnosis.step.wall_ns
    mean: int | None = getattr(diagnosis.step.phases_ns, name)
    return mean


def _differences(first: Diagnosis, second: Diagnosis, samples: tuple[list[Step], list[Step]]) -> tuple[Difference, ...]:
    means = {name: (_mean(first, name), _mean(second, name)) for name in ("step", *PHASES)}
    known = {name: (b, a) for name, (b, a) in means.items() if b is not None and a is not None}
    intervals = _intervals(*samples, list(known)) if known and min(map(len, samples)) >= _LEAST_STEPS else {}
    differences = []
    for name, (before, after) in known.items():
        low, high = intervals.get(name, (None, None))
        tested: Change = "not tested"
        if low is not None and high is not None:
            tested = "faster" if high < 0 else "slower" if low > 0 else "no difference"
        differences.append(
            Difference(name=name, before_ns=before, after_ns=after, low_ns=low, high_ns=high, change=tested)
        )
    return tuple(differences)


def _intervals(before: list[Step], after: list[Step], names: list[str]) -> dict[str, tuple[int, int]]:
    """95% interval of after - before for the step and each phase, by a bootstrap of blocks of neighbouring steps.

    Blocks as long as the square root of the number of steps, because slow steps come together (another
    program runs, a cache fills): drawing single steps would call that noise too small. In each resample
    the middle 80% of the steps are averaged, as in the step breakdown.
    """
    import numpy as np

    # A fixed seed: comparing the same two runs twice gives the same answer.
    random = np.random.default_rng(0)
    means = []
    for rows in (before, after):
        times = np.array([[_time(row, name) for name in names] for row in rows])
        length = math.isqrt(len(rows))
        starts = random.integers(0, len(rows), size=(_RESAMPLES, -(-len(rows) // length)))
        drawn = ((starts[:, :, None] + np.arange(length)) % len(rows)).reshape(_RESAMPLES, -1)
        walls = np.array([_time(row, "step") for row in rows])[drawn]
        cut = int(drawn.shape[1] * _TRIM)
        middle = np.argsort(walls, axis=1)[:, cut : drawn.shape[1] - cut]
        means.append(times[np.take_along_axis(drawn, middle, axis=1)].mean(axis=1))
    low, high = np.percentile(means[1] - means[0], [2.5, 97.5], axis=0)
    return {name: (round(low[column]), round(high[column])) for column, name in enumerate(names)}


def _time(row: Step, name: str) -> float:
    total = row.wall_ns if name == "step" else getattr(row.phases_ns, name)
    # A phase that a step did not have (validation, a checkpoint) took none of its time.
    return (total or 0) / row.steps


def _counts(first: Diagnosis, second: Diagnosis) -> tuple[Count, ...]:
    pairs = {
        "syncs per step": (first.figures.syncs_per_step, second.figures.syncs_per_step),
        "ops per step": (first.figures.ops_per_step, second.figures.ops_per_step),
    }
    return tuple(
        Count(name=name, before=before, after=after)
        for name, (before, after) in pairs.items()
        if before is not None and after is not None
    )


def _key(finding: Finding) -> tuple[str, str, str | None]:
    """What makes two findings the same: not the line, which moves with every edit, nor the folder of a copy."""
    return finding.rule, os.path.basename(finding.file or ""), finding.function


def _only_in(here: Diagnosis, there: Diagnosis) -> tuple[Finding, ...]:
    known = {_key(finding) for finding in there.findings}
    return tuple(f for f in here.findings if f.severity != "info" and _key(f) not in known)


def _verdict(differences: tuple[Difference, ...]) -> str:
    if not differences:
        return "The two cannot be compared: no step was measured on both sides."
    step = differences[0]
    times = f"{ms(step.before_ns)} before, {ms(step.after_ns)} after"
    changed = change(step.before_ns, step.after_ns)
    if step.change == "no difference":
        return f"No difference: a step took {times}, which is within the noise of the steps."
    if step.change == "not tested":
        return f"A step took {times} ({changed}); whether that is more than noise was not tested."
    return f"A step is {step.change}: {times} ({changed})."
