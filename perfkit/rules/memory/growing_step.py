"""Steps take longer the later they come.

Problem: each step works on something that the steps before it have left: a graph that is never cut, a list that is
walked or written as a whole, hooks that are added again. The last step of the run takes many times the first one.

How it shows: the level of the step rises through the whole run, by at least 10% and four times its uncertainty, and the
machine is not the reason: a part of the step stays as long as it was, or nearly each step is longer than all before.
On a busy machine it is the ratio of one phase to the rest of the same step that rises. Growth may begin again at equal
distances, as that of a list that each epoch empties. Batches or inputs that grow are no growth; where a step calls the
model more often than those before, as in longer episodes, it is its time per call. Where L-BFGS alone updates, growth
of its updates is information: its history gets longer until it has `history_size` entries.

Causes: `total = total + loss` with `backward(retain_graph=True)`; a recurrent state that is not detached; a history
that is averaged, sorted or written in every step; a hook that the loop registers again and again.

Fix: cut what one step hands to the next, and keep running numbers in place of histories.

    state = state.detach()                     # before the next step uses it
    total += loss.item()                       # at the end of the epoch: not a tensor with its graph
    mean += (value - mean) / count             # not: mean = sum(history) / len(history)

Saving: what the steps take beyond the first ones' level, in the mean over the recorded steps; over more steps the
finding estimates more. The interval is the uncertainty of that level, and on a CPU 15% more.

Source: levels of eighths of the run, Kendall's test of their order; tensors that stay alive give the line, else samples
of the phase that grows, and the line of the training loop from which they were reached.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms, times
from perfkit._location import Location
from perfkit.findings import Evidence, Finding
from perfkit.ledger.step_budget import MeanStepBudget
from perfkit.measures.results.loop import StepGrowth
from perfkit.measures.results.measurements import PlannedSteps
from perfkit.rules._places import call_in_loop
from perfkit.rules.memory._held_tensors import largest_held, storing_line
from perfkit.run.records import Filling, LineRow, Lines, Rank

ID = "growing-step"
#: What is written as a whole in every step grows as well: that rule names what to change.
FOLLOWS_IN_FUNCTION = ("logging-in-step", "metric-in-step", "checkpoint-in-step")
FOLLOWS = ("recompiles",)

#: A line with this share of the growth in samples is the one that grows (chosen).
_EXPLAINS = 0.4
#: Lines of a forward that may be what lengthens its backward (chosen).
_FORWARD_LINES = 3
#: What a step is made of: here the training reads what grows.
_TRAINING = ("data", "transfer", "forward", "backward", "optimizer")


def check(
    step: MeanStepBudget,
    growth: StepGrowth,
    rank: Rank | None = None,
    lines: Lines | None = None,
    planned: PlannedSteps | None = None,
) -> Iterator[Finding]:
    """Find growth of the step's time, the phase that grows, and the line that keeps what it works on."""
    cost = min(step.wall_ns, growth.excess_ns)
    if step.is_negligible(cost):
        return
    held = largest_held(rank.kept if rank is not None else ())
    # A tensor without a graph lengthens no backward.
    holds = held is not None and (held.graph or growth.phase != "backward")
    change = storing_line(held, lines) if held is not None and holds else None
    name = held.name if held is not None and holds else None
    hottest = _hottest(growth, lines)
    yield step.finding(
        severity="info" if rank is not None and _is_history(growth, rank) else None,
        cost=cost,
        saving=(max(0, cost - 2 * growth.noise_ns), step.maximum_saving(cost)),
        spent=hottest.at if hottest is not None else change,
        change=_to_change(growth, hottest, change, lines),
        message=(
            f"The step grows from {ms(growth.first_ns)} to {ms(growth.last_ns)} in {_steps(growth)}"
            f"{_per(growth)}, most of it in the phase {growth.phase}; what it takes beyond the first steps' level is "
            f"{step.shown(cost)}."
        ),
        advice=_advice(growth, name, _filling(hottest, lines)),
        confidence="high" if change is not None else "medium",
        evidence=tuple(_evidence(growth, planned)),
    )


def _is_history(growth: StepGrowth, rank: Rank) -> bool:
    """Whether what grows may be the history of L-BFGS, which has a largest length."""
    kinds = {one.kind for one in rank.optimizers}
    return growth.phase == "optimizer" and kinds == {"LBFGS"}


def _steps(growth: StepGrowth) -> str:
    """How many steps it grows for: ``150 steps and does so 3 times``."""
    if not growth.restarts:
        return f"{growth.steps:,} steps"
    return f"{growth.knots[-1][0] + 1:,} steps and does so {times(len(growth.restarts))}"


def _per(growth: StepGrowth) -> str:
    """Which steps these are, where later ones have more work."""
    return "" if growth.calls is None else f" (those of {growth.calls:,.0f} calls of the model, the mean)"


def _to_change(
    growth: StepGrowth, hottest: LineRow | None, stored: Location | None, lines: Lines | None
) -> Location | None:
    """The line that keeps what grows, else the one of the loop that goes through it.

    Where growth begins again, what grows is kept on purpose, and gone through too often. So is what an object keeps
    whose own method goes through it, as a replay buffer's: None, the hottest line is to be changed. A hook is to be
    registered once.
    """
    called = call_in_loop(hottest, lines)
    filling = _filling(hottest, lines)
    if filling is not None and filling.is_hook and stored is None:
        return _added_at(hottest, lines)
    if growth.restarts and stored is None and growth.phase != "backward" and called is not None:
        return called
    if stored is None and hottest is not None and _is_own(hottest, _added_at(hottest, lines)):
        # Outside of the training's own phases it is a number to be looked at, which can be computed less often.
        return None if growth.phase in _TRAINING else called
    return stored or _added_at(hottest, lines) or _added_before(growth, lines) or called


def _is_own(hottest: LineRow, added_at: Location | None) -> bool:
    """Whether what the line goes through is added to in a method of the same class."""
    of_class = (hottest.function or "").rpartition(".")[0]
    return added_at is not None and bool(of_class) and (added_at.function or "").rpartition(".")[0] == of_class


def _advice(growth: StepGrowth, name: str | None, filling: Filling | None) -> str:
    if name is not None:
        return f"Detach what {name} keeps from one step to the next, or store numbers in place of it."
    if filling is not None and filling.is_hook:
        return (
            "Register this hook once, before the loop, or call remove() on its handle: each registration adds a call."
        )
    if growth.restarts and growth.phase != "backward":
        return "Compute this once, when all of it is there (at the end of the epoch), or keep a running value."
    if growth.phase == "backward":
        return "Detach what one step hands to the next: the backward goes through the graphs of all steps before."
    return "Find what this phase walks over that every step adds to, and keep a running value, or the newest part only."


def _evidence(growth: StepGrowth, planned: PlannedSteps | None) -> Iterator[Evidence]:
    source = f"steps.jsonl, {growth.steps} steps in eight parts"
    yield Evidence.ms("first steps", growth.first_ns, source)
    yield Evidence.ms("last steps", growth.last_ns, source)
    yield Evidence.ms(f"{growth.phase} in the first eighth", growth.phase_first_ns, source)
    yield Evidence.ms(f"{growth.phase} in the last eighth", growth.phase_last_ns, source)
    yield Evidence.ms("growth per 1,000 steps", 1000 * growth.ns_per_step, source)
    if planned is not None and planned.count > growth.steps:
        later = growth.mean_excess_ns(planned.count)
        yield Evidence.ms(f"cost per step over {planned.count:,} steps", later, "if the growth goes on")


def _added_at(hottest: LineRow | None, lines: Lines | None) -> Location | None:
    """The line that adds to what the hottest line, or the line that calls its function, goes through.

    A function that another one defines in each step is one more each time, as a hook that is registered again: the call
    of the function that defines it is the place.
    """
    if hottest is None or lines is None:
        return None
    places = [at for at in (hottest.at, hottest.called_from) if at is not None]
    for at in places:
        outer = (at.function or "").rpartition(".<locals>.")[0]
        for one in lines.traced:
            if outer and (one.file, one.function) == (at.file, outer) and one.runs:
                return one.callers[0] if one.callers else one.at
    filling = _filling(hottest, lines)
    return filling.filled if filling is not None else None


def _filling(hottest: LineRow | None, lines: Lines | None) -> Filling | None:
    """What is known of the hottest line, else of the line that calls its function."""
    if hottest is None or lines is None:
        return None
    known = {(fill.file, fill.line): fill for fill in lines.fillings}
    places = [at for at in (hottest.at, hottest.called_from) if at is not None]
    return next((known[at.file, at.line] for at in places if at.line is not None and (at.file, at.line) in known), None)


def _added_before(growth: StepGrowth, lines: Lines | None) -> Location | None:
    """Where a backward grows: what is added to what the hottest lines of its forward go through."""
    if growth.phase != "backward" or lines is None:
        return None
    rows = [row for row in lines.in_phase("forward") if row.owner == "user"][:_FORWARD_LINES]
    return next((at for row in rows if (at := _added_at(row, lines)) is not None), None)


def _hottest(growth: StepGrowth, lines: Lines | None) -> LineRow | None:
    """The line with most samples in the growing phase, None where it has too few to be the one that grows."""
    own = [row for row in (lines.in_phase(growth.phase) if lines is not None else ()) if row.owner == "user"]
    if lines is None or not own:
        return None
    grown_ns = growth.excess_ns * lines.steps
    return own[0] if own[0].samples * lines.period_ns >= _EXPLAINS * grown_ns else None
