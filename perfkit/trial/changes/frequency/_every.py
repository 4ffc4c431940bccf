"""What remains of a cost that comes less often."""

from __future__ import annotations

from perfkit.trial.changes._numbers import whole_number

#: Once is what the program does now.
parse = whole_number(2)


def suggested() -> list[int]:
    """A tenth of the times: it leaves little to save by more."""
    return [10]


def remaining(value: int) -> float:
    """The share of the cost that remains."""
    return 1 / value
