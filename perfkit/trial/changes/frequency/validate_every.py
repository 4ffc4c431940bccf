"""Validate one time in N.

N counts the times that the program validates now: with N = 10 a tenth of the cost of validation remains.
"""

from __future__ import annotations

from perfkit.trial.changes.frequency._every import parse, remaining, suggested

__all__ = ["parse", "remaining", "suggested"]

ID = "validate-every"
ANSWERS = ("validation-too-often",)
KIND = "computed"
LINES = "if validations % {value} == 0: validate(model)  # or Trainer(check_val_every_n_epoch={value})"
