"""A model that generates a sequence reads all of it again for each new position.

Problem: of a causal model, the keys and values of the positions so far (of a recurrent one, its state) are the same in
every call. Without a cache each call computes them anew, for an input that is one position longer than the last.

How it shows: most calls of the model have one position more than the call before, and their time grows with the length.
What all positions but the newest take is 5% of the call or more.

Causes: `use_cache=False`; a loop of one's own that concatenates the new token and calls the model with all tokens.

Fix: give the model what is new, and the cache of the rest; or let the library's `generate` do it.

    out = model(ids, past_key_values=cache, use_cache=True)    # ids: the prompt, then the newest token
    cache = out.past_key_values

    scores, state = model(text[:, -1:], state)                 # a recurrent model

Saving: what follows the length of the input, at least 75% of it (chosen; two programs saved 92 and 95%): a call for one
position reads all weights as well, and the cache is copied as it grows.

Source: the elements of each call's input and its time; the slope is the median of all pairs of calls (Theil-Sen). A
model in which early positions depend on later ones, as an encoder, cannot do this.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import COMPUTING, PYTHON
from perfkit.ledger.step_budget import StepBudget
from perfkit.measures.results.steps import GrowingInputs
from perfkit.rules._places import busiest_line
from perfkit.run.records import Lines

ID = "generation-without-cache"
CLAIMS = (*COMPUTING, *PYTHON)

#: The share of what follows the length that is saved at least (chosen).
_MINIMUM = 0.75


def check(step: StepBudget, growing: GrowingInputs, lines: Lines | None = None) -> Iterator[Finding]:
    """Find calls that grow by one position, and what all but the newest position take."""
    cost = step.wall_ns * growing.share * growing.by_position
    if step.is_negligible(cost):
        return
    by = step.counted_by
    at = (by.called_at if by is not None else None) or busiest_line(lines, "other", "forward", "validation")
    module = by.module if by is not None and by.module is not None else "the model"
    yield step.finding(
        cost=cost,
        saving=(_MINIMUM * cost, step.maximum_saving(cost)),
        spent=at,
        change=at,
        message=(
            f"Each call of {module} reads one position more than the last, {growing.positions:,.0f} on average, and "
            f"computes all of them again: {step.shown(cost)}."
        ),
        advice=(
            "Keep what was computed (past_key_values with use_cache=True, or a recurrent state), and call the model "
            "with the newest position only."
        ),
        confidence="medium",
        evidence=(
            Evidence("calls that grow by one position", growing.calls, "", "input elements in steps.jsonl"),
            Evidence("positions", round(growing.positions, 1), "on average", "input elements in steps.jsonl"),
            Evidence.percent("time that follows the length", growing.by_position, 1, "slope of all pairs of calls"),
        ),
    )
