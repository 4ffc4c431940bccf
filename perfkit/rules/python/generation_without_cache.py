"""A model that generates a sequence reads all of it again for each new position.

Problem: of a causal model, the keys and values of the positions so far (of a recurrent one, its state) are the same in
every call. Without a cache each call computes them anew, for an input that is one position longer than the last.

How it shows: most calls of the model, at least eight in a step, have one position more than the call before. Where
calls are the steps, their time grows with the length. What all positions but the newest take is 5% of the step or more.

Causes: `use_cache=False`; a loop of one's own that concatenates the new token and calls the model with all tokens.

Fix: give the model what is new, and the cache of the rest; or let the library's `generate` do it.

    out = model(ids, past_key_values=cache, use_cache=True)    # ids: the prompt, then the newest token
    cache = out.past_key_values

    scores, state = model(text[:, -1:], state)                 # a recurrent model

Saving: what follows the length of the input, at least 75% of it (chosen; two programs saved 92 and 95%): a call for one
position reads all weights as well, and the cache is copied as it grows.

Source: where calls are the steps, the elements of each one's input and its time; the slope is the median of all pairs
of calls (Theil-Sen). Else the calls of the step that is traced by line, or all calls of the run from outside of a
model (in a validation, in a report of every 500th step), as if their time followed their length. A model in which early
positions depend on later ones, as an encoder, cannot do this.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from perfkit._location import Location
from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import COMPUTING, PYTHON
from perfkit.ledger.step_budget import MeanStepBudget, StepBudget
from perfkit.measures.results.steps import GrowingInputs
from perfkit.rules._places import busiest_line, library_called
from perfkit.rules._settings import first_call
from perfkit.rules.python._traced_calls import cost_of_calls
from perfkit.run.records import Lines, ModuleCalls, Rank, RegrownInputs

ID = "generation-without-cache"
CLAIMS = (*COMPUTING, *PYTHON)

#: Calls in the traced step of which most have one position more than the one before: fewer may be chance (chosen).
_MIN_CALLS = 8
#: The share of what follows the length that is saved at least (chosen).
_MINIMUM = 0.75


def check(
    step: StepBudget,
    growing: GrowingInputs | None = None,
    lines: Lines | None = None,
    mean: MeanStepBudget | None = None,
    rank: Rank | None = None,
) -> Iterator[Finding]:
    """Find calls that grow by one position, and what all but the newest position take."""
    if growing is not None:
        found = _calls_that_are_steps(step, growing, lines)
    else:
        found = _calls_in_steps(step, lines, mean) if lines is not None else iter(())
    for one in found:
        # A library's generate() has use_cache=False as an argument, which may be set on another line.
        by_library = one.spent is not None and library_called(one.spent, lines) and rank is not None
        off = first_call(rank, "use_cache=False") if by_library and rank is not None else None
        yield msgspec.structs.replace(one, change=off) if off is not None else one


def _calls_in_steps(step: StepBudget, lines: Lines, mean: MeanStepBudget | None) -> Iterator[Finding]:
    of_traced_step = list(_traced_calls(step, lines))
    # That may be one with an evaluation, of which the typical step has nothing.
    yield from of_traced_step or (_calls_of_run(mean, lines) if mean is not None else ())


def _traced_calls(step: StepBudget, lines: Lines) -> Iterator[Finding]:
    found = {(row.file, row.line): (row, calls) for row in lines.traced for calls in row.modules if _grows(calls)}
    for row, calls in found.values():
        # What the model calls grows with it.
        if not any((caller.file, caller.line) in found for caller in row.callers):
            cost = cost_of_calls(calls.growing_ns, row, lines, step, backward=False)
            evidence = Evidence("of them with one position more", calls.growing, "", "the step traced by line")
            yield from _finding(step, cost, calls.module, calls.calls, row.at, evidence)


def _calls_of_run(mean: MeanStepBudget, lines: Lines) -> Iterator[Finding]:
    # A line that generates both in an evaluation and outside has a row for each.
    by_line: dict[tuple[str, int, str], list[RegrownInputs]] = {}
    for one in lines.regrown_inputs:
        by_line.setdefault((one.file, one.line, one.module), []).append(one)
    for rows in by_line.values():
        phases = Evidence("phase", " ".join(row.phase for row in rows), "", "of the first of them")
        cost = min(sum(row.host_ns for row in rows), mean.wall_ns)
        calls_of_line = sum(row.calls for row in rows)
        yield from _finding(mean, cost, rows[0].module, calls_of_line, rows[0].at, phases)


def _grows(calls: ModuleCalls) -> bool:
    return calls.growing >= _MIN_CALLS and 2 * calls.growing >= calls.calls


def _calls_that_are_steps(step: StepBudget, growing: GrowingInputs, lines: Lines | None) -> Iterator[Finding]:
    by = step.counted_by
    at = (by.called_at if by is not None and by.module is not None else None) or busiest_line(
        lines, "other", "forward", "validation"
    )
    module = by.module if by is not None and by.module is not None else "the model"
    positions = Evidence("positions", round(growing.positions, 1), "on average", "input elements in steps.jsonl")
    share = Evidence.percent("time that follows the length", growing.by_position, 1, "slope of all pairs of calls")
    cost = step.wall_ns * growing.share * growing.by_position
    yield from _finding(step, cost, module, growing.calls, at, positions, share)


def _finding(
    step: StepBudget, cost: float, module: str, calls: int, at: Location | None, *evidence: Evidence
) -> Iterator[Finding]:
    if step.is_negligible(cost):
        return
    yield step.finding(
        cost=cost,
        saving=(_MINIMUM * cost, step.maximum_saving(cost)),
        spent=at,
        change=at,
        message=(
            f"Each call of {module} reads one position more than the last, and computes all of them again: "
            f"{step.shown(cost)}."
        ),
        advice=(
            "Pass use_cache=True to generate(). In a loop of your own keep what was computed (past_key_values, or a "
            "recurrent state), and call the model with the newest position only."
        ),
        confidence="medium",
        evidence=(Evidence("calls", calls, "", "inputs of the model"), *evidence),
    )
