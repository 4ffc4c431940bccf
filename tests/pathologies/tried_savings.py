"""What `perfkit try` measured, next to what the findings had predicted: the trial.json of run folders."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
from interval_score import residual

from perfkit.ledger.intervals import scale_of
from perfkit.rules._engine import find_rules
from perfkit.run.records.trial import Trial, TriedChange


class TriedSaving(NamedTuple):
    """A predicted interval and the saving that was then measured, as shares of the step."""

    program: str
    change: str
    family: str
    low: float
    high: float
    measured: float

    @property
    def covered(self) -> bool:
        """Whether the measured saving lies within the interval."""
        return self.low <= self.measured <= self.high

    @property
    def residual(self) -> float | None:
        """How far it lies from the middle of the range that the rule gave, in half ranges."""
        return residual(self.low, self.high, self.measured, scale_of(self.family))


def tried_savings(folder: Path) -> Iterator[TriedSaving]:
    """Every predicted saving that was measured in the trials below ``folder``, one per change.

    A finding predicts what its correction saves: of a change that was tried with several values, the best one counts.

    Raises:
        ValueError: no trial.json is below the folder.
    """
    files = sorted(folder.rglob("trial.json"))
    if not files:
        raise ValueError(f"{folder} must hold run folders with a trial.json, and has none: run `perfkit try` there")
    for file in files:
        trial = msgspec.json.decode(file.read_bytes(), type=Trial)
        best: dict[str, TriedSaving] = {}
        for saving in _measured(trial.program, trial.changes):
            known = best.get(saving.change)
            if known is None or saving.measured > known.measured:
                best[saving.change] = saving
        yield from best.values()


def _measured(program: str, changes: Iterable[TriedChange]) -> Iterator[TriedSaving]:
    families = {rule.id: rule.family for rule in find_rules()}
    for one in changes:
        # What is computed from the prediction says nothing about it.
        if one.saving is None or one.predicted is None or not one.rules or one.outcome == "computed":
            continue
        change = one.name.partition("=")[0]
        yield TriedSaving(program, change, families.get(one.rules[0], ""), *one.predicted, one.saving)
