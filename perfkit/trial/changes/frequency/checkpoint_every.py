"""Save a checkpoint one time in N.

N counts the times that the program saves one now: with N = 10 a tenth of the cost of checkpoints remains. A crash
then loses N times as much work.
"""

from __future__ import annotations

from perfkit.trial.changes.frequency._every import parse, remaining, suggested

__all__ = ["parse", "remaining", "suggested"]

ID = "checkpoint-every"
ANSWERS = ("checkpoint-in-step",)
KIND = "computed"
LINES = "if checkpoints % {value} == 0: torch.save(state, path)"
