"""A function of the loop computes the same tensors in every step.

Problem: a table of positions, a mask or a bank of filters that depends on no batch and no weight is made anew in each
step.

How it shows: in the step that is traced by line, a function of the user's returns tensors, although nothing that it
reads changes: plain arguments that are the same in all calls of a line, tensors that are not written, plain attributes
of its object, constants of its module, no random numbers, no model. The step after it shows the same arguments and
results again. Its calls take 5% of the step or more.

Causes: a helper that is called in `forward` instead of in `__init__`.

Fix: compute it once and keep it.

    self.register_buffer("bias", neighbours(), persistent=False)      # in __init__

    @functools.cache                                                  # or at the function
    def neighbours() -> Tensor: ...

Saving: the time of the calls, with an error of a quarter.

Source: one step that is traced by line, in which Python is slower than in others. The threshold is 5% of the step. A
function or method that reads another object, or calls a module, is not examined. 25% for the error of a single step was
chosen, as for unexpected-call-count.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import shown_function, times
from perfkit._location import Location
from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import COMPUTING, Selector
from perfkit.ledger.step_budget import StepBudget
from perfkit.rules.python._traced_calls import cost_of_calls
from perfkit.run.records import Lines

ID = "repeated-work"
CLAIMS = (*COMPUTING, Selector(owner="python"), Selector(phase="data"))

#: The error of shares that come from one traced step: chosen.
_ERROR = 0.25


def check(step: StepBudget, lines: Lines) -> Iterator[Finding]:
    """Find functions that return the same tensors in every step."""
    for row in lines.traced:
        for calls in row.constants:
            cost = round(cost_of_calls(calls.host_ns, row, lines, step, backward=False))
            if step.is_negligible(cost):
                continue
            name = shown_function(calls.called)
            spent = _busiest_line_of(calls.called, lines)
            yield step.finding(
                cost=cost,
                saving=((1 - _ERROR) * cost, min(step.wall_ns, (1 + _ERROR) * cost)),
                spent=spent,
                change=row,
                message=(
                    f"{name} returns the same tensors in every step and is called "
                    f"{times(calls.calls)} per step: {step.shown(cost)}."
                ),
                advice=f"Call {name} once and keep the result (a buffer of the module, a cache).",
                evidence=(
                    Evidence.ms(
                        f"{name} called in line {row.line}",
                        cost,
                        f"{calls.calls} calls in the traced step",
                    ),
                ),
            )


def _busiest_line_of(called: Location, lines: Lines) -> Location:
    rows = [one for one in lines.traced if (one.file, one.function) == (called.file, called.function)]
    return max(rows, key=lambda one: one.host_ns).at if rows else called
