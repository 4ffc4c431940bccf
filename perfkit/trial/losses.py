"""Whether a changed program computes the same losses: exactly, or within what other seeds make of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from perfkit._format import share_of
from perfkit.run.records import LossCheck

#: Relative difference up to which two losses are equal: float32 keeps 7 digits, and another order of a sum moves the
#: last one.
EQUAL = 1e-6

_Losses = Sequence[float | None]

#: What changes may do to losses, and why those that differ as other seeds' do are the same result. "redrawn": random
#: numbers, as those of an augmentation, are drawn in other processes.
Moves = Literal["exact", "numeric", "redrawn"]
_WHY: dict[Moves, str] = {
    "exact": "as much as the unchanged program's own",
    "numeric": "within what other seeds differ by",
    "redrawn": "within what other seeds differ by: the dataset draws its random numbers in other processes",
}


class BaselineLosses(NamedTuple):
    """Losses of the unchanged program by step: of a run, of a second one, and of runs with other seeds."""

    first: _Losses
    second: _Losses
    other_seeds: Sequence[_Losses] = ()

    @property
    def repeats(self) -> float | None:
        """The largest relative difference between two runs of the same program; None where no loss was seen."""
        return _largest_difference(self.first, self.second)

    @property
    def deterministic(self) -> bool:
        """Whether two runs of the same program compute equal losses."""
        return (repeats := self.repeats) is not None and repeats <= EQUAL

    def check(self, losses: _Losses, moves: Moves) -> LossCheck:
        """Compare the losses of a changed program, of the same steps and seeds.

        An exact change must leave them equal to `EQUAL`. Others may move them by as much as other seeds do: the mean
        difference over the steps is compared with that between runs of different seeds.
        """
        pairs = _pairs(self.first, losses)
        difference = _largest_difference(self.first, losses)
        if difference is None:
            return LossCheck(outcome="unknown", sentence="no loss was seen: no backward() starts from one number")
        if difference <= EQUAL:
            return LossCheck(outcome="same", sentence="same loss", difference=difference, steps=len(pairs))
        found = share_of(difference)
        noise = self._noise(moves)
        if _mean_distance(pairs) <= noise:
            sentence, outcome = f"losses differ by at most {found}, {_WHY[moves]}", "within-seeds"
        else:
            sentence, outcome = f"the result differs: losses by at most {found} over {len(pairs)} steps", "differs"
        return LossCheck(outcome=outcome, sentence=sentence, difference=difference, steps=len(pairs))  # type: ignore[arg-type]  # one of two words

    def _noise(self, moves: Moves) -> float:
        """The mean distance of two runs that count as the same: repeats, and but for exact changes other seeds."""
        runs = [self.first, self.second, *(self.other_seeds if moves != "exact" else ())]
        distances = [
            _mean_distance(pairs) for at, one in enumerate(runs) for other in runs[:at] if (pairs := _pairs(one, other))
        ]
        return max(distances, default=0.0)


def _pairs(one: _Losses, other: _Losses) -> list[tuple[float, float]]:
    return [(a, b) for a, b in zip(one, other, strict=False) if a is not None and b is not None]


def _mean_distance(pairs: Sequence[tuple[float, float]]) -> float:
    """Mean of the absolute differences; infinite where one of the two runs has left the finite numbers."""
    distances = [abs(a - b) if math.isfinite(a) and math.isfinite(b) else math.inf for a, b in pairs if not _same(a, b)]
    return sum(distances) / len(pairs)


def _same(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))


def _largest_difference(one: _Losses, other: _Losses) -> float | None:
    """The largest relative difference of a step's losses; None where no step has both."""
    pairs = _pairs(one, other)
    if not pairs:
        return None
    return max(0.0 if _same(a, b) else _relative(a, b) for a, b in pairs)


def _relative(a: float, b: float) -> float:
    if not (math.isfinite(a) and math.isfinite(b)):
        return math.inf
    return abs(a - b) / max(abs(a), abs(b))
