"""Log one time in N.

N counts the times that the program logs now: with N = 10 a tenth of the cost of logging remains.
"""

from __future__ import annotations

from perfkit.trial.changes.frequency._every import parse, remaining, suggested

__all__ = ["parse", "remaining", "suggested"]

ID = "log-every"
ANSWERS = ("logging-in-step",)
KIND = "computed"
LINES = "if step % {value} == 0: log(loss)  # or Trainer(log_every_n_steps={value})"
