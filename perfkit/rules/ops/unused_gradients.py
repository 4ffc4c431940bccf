"""A backward computes gradients of a model that nothing updates.

Problem: a teacher, a feature extractor or another model that is only asked takes part in the loss with gradients
enabled. Its graph is built, its activations are kept, and its backward runs in every step, for gradients that no
optimizer reads.

How it shows: the parameters of a model that the program calls, or of a part of it, have gradients, none of them is in
an optimizer that steps, and nothing has changed them since the first call. Or an optimizer has them, and they are
cleared between the backward that computed them and its step.

Causes: no `torch.no_grad()` around the call; a teacher that was trained first and only set to `eval()`; parameters that
were left out of the optimizer without `requires_grad_(False)`; a generator's samples that its critic gets without
`detach()`.

Fix: ask it without gradients; where its inputs need theirs (a perceptual loss), freeze its parameters alone.

    with torch.no_grad():
        target = teacher(x)

    features.requires_grad_(False)    # its inputs still get gradients

    loss = critic(generator(noise).detach()).mean() - critic(real).mean()

Saving: the backward of the ops that its line calls; where they are in the model's own lines, or on a GPU, the backward
by the model's share of the forward in the step that is traced by line, or by the share that parts have of its
parameters. Where its inputs need gradients, half of that: of the two products of a layer's backward one remains. Other
lines that call it in the traced step count likewise, each by its own inputs, if a backward reached what they got.

Source: torch's notes on autograd mechanics, "Locally disabling gradient computation". On an H200 a teacher of 6 layers
beside a student of 4 cost 13.1 of 32.0 ms.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from perfkit._location import Location
from perfkit.findings import Evidence, Finding
from perfkit.ledger.ledger import Ledger
from perfkit.ledger.rows import LATE, ON_DEVICE, Selector
from perfkit.ledger.step_budget import StepBudget
from perfkit.rules.python._traced_calls import cost_of_calls
from perfkit.run.records import MODELS, Lines, Rank, TracedLine, UnusedGradients

ID = "unused-gradients"
CLAIMS = (
    *(Selector(owner=owner, phase="backward") for owner in ("computing", "op overhead")),
    LATE,
    ON_DEVICE,
)

#: The share of the cost that is saved at least: chosen; ops of the line that need gradients for something else stay.
_MINIMUM = 0.7
_CLEARED = "which are cleared before its optimizer steps"
#: Where the inputs need gradients, one of the two products of each layer's backward remains.
_OF_PARAMETERS = 0.5


def check(step: StepBudget, rank: Rank, ledger: Ledger | None = None, lines: Lines | None = None) -> Iterator[Finding]:
    """Find models with gradients that nothing uses, and the backward of the lines that call them."""
    for one in rank.unused_gradients:
        calls = [(each, *_backward(each, step, ledger, lines)) for each in _calls(one, lines)]
        backward, source = sum(ns for _, ns, _ in calls), calls[0][-1]
        cost = round(sum(ns * (_OF_PARAMETERS if each.passes_on else 1) for each, ns, _ in calls)) or None
        if cost is not None and step.is_negligible(cost):
            continue
        yield step.finding(
            cost=cost,
            saving=(_MINIMUM * cost, step.maximum_saving(cost)) if cost is not None else None,
            spent=_backward_line(one, lines) or one.called_at,
            change=_to_edit(one, rank, lines),
            message=(
                f"The backward computes gradients of {_name(one)}, "
                f"{_CLEARED if one.cleared else f'whose {one.elements:,} parameters no optimizer has'}"
                f"{f': {step.shown(cost)}' if cost is not None else ''}."
            ),
            advice=_advice(one),
            confidence="medium" if cost is not None else "high",
            evidence=(
                Evidence(
                    "parameters whose gradients are cleared" if one.cleared else "parameters without an optimizer",
                    one.elements,
                    "",
                    "rank.json",
                ),
                Evidence.ms("its backward", backward, source)
                if cost is not None
                else Evidence("cost", None, "ms", "the backward of its line was not recorded"),
            ),
        )


def _calls(one: UnusedGradients, lines: Lines | None) -> list[UnusedGradients]:
    """The model as each line of the traced step calls it, where a backward reached what the line got.

    The inputs of one call may need gradients, as a picture that is made, and those of another not.
    """
    at = one.called_at
    if lines is None or at is None or one.cleared or one.of is not None:
        return [one]
    calls = [(row.at, call) for row in lines.traced for call in row.modules if call.module == one.module]
    numbers = {call.number for place, call in calls if (place.file, place.line) == (at.file, at.line)}
    if len(numbers) != 1 or None in numbers:
        return [one]  # several models of one class, or it is not known which of them
    found: dict[tuple[str, int | None], UnusedGradients] = {}
    for place, call in calls:
        own = (place.file, place.line) == (at.file, at.line)
        if call.number in numbers and (call.reached or (own and call.reached is None)):
            other = msgspec.structs.replace(one, called_at=place, passes_on=call.passes_on)
            found[place.file, place.line] = one if own else other
    return [*found.values()] or [one]


def _backward(one: UnusedGradients, step: StepBudget, ledger: Ledger | None, lines: Lines | None) -> tuple[int, str]:
    """The backward of the calls from one line, and where that is known from."""
    backward = 0 if _is_users(one, lines) else _backward_ns(one, ledger, lines)
    if ledger is not None and backward:
        return ledger.as_wall(backward), "the ledger"
    return _by_forward(one, step, lines), "by its share of the forward in the step traced by line"


def _backward_line(one: UnusedGradients, lines: Lines | None) -> Location | None:
    """The user's line with the backward that goes through the model: the next one below its call, else the longest."""
    below = _backwards_below(one, lines)
    if below:
        return below[0].at
    rows = lines.traced if lines is not None and one.called_at is not None else ()
    found = [(row, row.gradients) for row in rows if row.gradients is not None and not row.gradients.is_grad]
    return max(found, key=lambda pair: pair[1].host_ns)[0].at if found else None


def _backwards_below(one: UnusedGradients, lines: Lines | None) -> list[TracedLine]:
    """The lines with a backward in the function that calls the model, below that call, in their order."""
    return [row for row in _below(one, lines) if row.gradients is not None and not row.gradients.is_grad]


def _below(one: UnusedGradients, lines: Lines | None) -> list[TracedLine]:
    """The lines of the function that calls the model that are below that call, in their order."""
    at = one.called_at
    rows = (
        row
        for row in (lines.traced if lines is not None and at is not None else ())
        if at is not None and (row.file, row.function) == (at.file, at.function) and row.line > (at.line or 0)
    )
    return sorted(rows, key=lambda row: row.line)


def _to_edit(one: UnusedGradients, rank: Rank, lines: Lines | None) -> Location | None:
    """The line to edit.

    For several parts of a model that is the line that makes the optimizer, which leaves them out; for a model whose
    inputs need gradients the line that makes it, where it can be frozen; for an output that two backwards use the first
    call of a model below it, where it can be detached; else the call of the model.
    """
    if one.parts > 1:
        return next((made.created_at for made in rank.optimizers if made.created_at is not None), None)
    if one.passes_on and not one.cleared:
        made_at = rank.calls.get(MODELS, ())
        return next((at for at in made_at if at.function == f"{one.module}(...)"), one.called_at)
    backwards = _backwards_below(one, lines)
    if one.cleared and len(backwards) > 1:
        calls = [row for row in _below(one, lines) if row.modules and row.line < backwards[0].line]
        return calls[0].at if calls else one.called_at
    return one.called_at


def _name(one: UnusedGradients) -> str:
    if one.of is None:
        return one.module
    others = f" and {one.parts - 1} other part{'s' * (one.parts > 2)}" if one.parts > 1 else ""
    return f"{one.module}{others} of {one.of}"


def _advice(one: UnusedGradients) -> str:
    if one.of is not None:
        return f"Call requires_grad_(False) on the parts of {one.of} that are not trained."
    if one.passes_on:
        return f"Call requires_grad_(False) on {one.module}: its inputs still get their gradients."
    if one.cleared:
        return f"Detach what {one.module} returns, or call it under torch.no_grad(), where another model is updated."
    return f"Call {one.module} under torch.no_grad(), or requires_grad_(False) on it."


def _backward_ns(one: UnusedGradients, ledger: Ledger | None, lines: Lines | None) -> int:
    """The backward of the ops that the model's line calls, its part of it where the line calls others too."""
    at = one.called_at
    if ledger is None or at is None:
        return 0
    rows = [row for row in ledger.rows if row.phase == "backward" and row.owner in ("computing", "op overhead")]
    whole = sum(row.ns for row in rows if row.at is not None and (row.at.file, row.at.line) == (at.file, at.line))
    return round(whole * _share_of_line(one, at, lines))


def _is_users(one: UnusedGradients, lines: Lines | None) -> bool:
    """Whether the model's forward is the user's own: its ops are at the lines of that, and not at the calling one."""
    at = one.called_at
    callers = (by for row in (lines.traced if lines is not None else ()) for by in row.callers)
    return at is not None and any((by.file, by.line) == (at.file, at.line) for by in callers)


def _by_forward(one: UnusedGradients, step: StepBudget, lines: Lines | None) -> int:
    """The backward by the model's share of the forward."""
    at = one.called_at
    if lines is None or at is None:
        return 0
    at_line = [row for row in lines.traced if (row.file, row.line) == (at.file, at.line)]
    calls = [(row, call.host_ns) for row in at_line for call in row.modules if call.module == one.module]
    if not calls and one.share:
        # Parts of the model that the line calls.
        calls = [(row, round(one.share * call.host_ns)) for row in at_line for call in row.modules]
    forward, both = (
        sum(cost_of_calls(ns, row, lines, step, backward=backward) for row, ns in calls) for backward in (False, True)
    )
    return round(both - forward)


def _share_of_line(one: UnusedGradients, at: Location, lines: Lines | None) -> float:
    """The model's share of the time of all models that its line calls, of parts that of parameters; 1: not known."""
    traced = lines.traced if lines is not None else ()
    calls = [call for row in traced if (row.file, row.line) == (at.file, at.line) for call in row.modules]
    own = sum(call.host_ns for call in calls if call.module == one.module)
    if own:
        return own / sum(call.host_ns for call in calls)
    return one.share if one.share is not None else 1.0
