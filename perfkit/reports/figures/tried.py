"""What `perfkit try` has measured in this program: the changes, and the sweeps."""

from __future__ import annotations

from perfkit.reports.figures.data import SweepFigure, TrialFigure, TriedFigure
from perfkit.reports.sweep import memory_sentence
from perfkit.run.reading import RunFolder
from perfkit.run.records import TriedChange

#: Changes and points, far more than anyone tries; and lines of a patch, which changes one or two places per change.
_MOST = 100
_PATCH_LINES = 400


def trial_of(run: RunFolder) -> TrialFigure | None:
    """The changes that were tried; None where none were."""
    trial = run.trial
    if trial is None:
        return None
    together = trial.together
    tried = [*trial.changes[:_MOST], *([together] if together is not None and len(together.names) > 1 else [])]
    lines = trial.patch.splitlines()
    rest = (f"... {len(lines) - _PATCH_LINES:,} more lines in trial.patch",) if len(lines) > _PATCH_LINES else ()
    return TrialFigure(
        program=trial.program,
        verdict=trial.verdict,
        floor=trial.floor,
        seconds=trial.seconds,
        changes=tuple(map(_tried, tried)),
        patch=(*lines[:_PATCH_LINES], *rest),
        unpatched=trial.unpatched[:_MOST],
        notes=trial.notes[:_MOST],
    )


def _tried(one: TriedChange) -> TriedFigure:
    notes = [one.sentence] if one.saving is None else []
    if one.kind == "bound":
        notes.append("an upper bound: what a correction could save at most")
    if one.pays_after is not None:
        notes.append(f"pays after {one.pays_after:,} steps")
    if one.loss is not None and one.loss.outcome != "same":
        notes.append(one.loss.sentence)
    return TriedFigure(
        name=one.name,
        outcome=one.outcome,
        saving=one.saving,
        ci=one.ci,
        predicted=one.predicted,
        before_ns=one.before_ns,
        after_ns=one.after_ns,
        loss=one.loss.outcome if one.loss is not None else "",
        notes=tuple(notes),
    )


def sweep_of(run: RunFolder) -> SweepFigure | None:
    """The values that were compared; None where none were."""
    sweep = run.sweep
    if sweep is None:
        return None
    return SweepFigure(
        swept=sweep.swept,
        verdict=sweep.verdict,
        unit=sweep.unit,
        own=sweep.own,
        recommended=sweep.recommended,
        points=sweep.points[:_MOST],
        memory=memory_sentence(sweep) if sweep.memory is not None else "",
        notes=sweep.notes[:_MOST],
    )
