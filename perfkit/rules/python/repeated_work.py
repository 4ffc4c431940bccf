"""The loop computes the same tensors in every step.

Problem: a table of positions, a mask, statistics of the whole dataset, or what a frozen model answers to the same input
is made anew in each step, although it depends on no batch and no weight that is trained.

How it shows: two steps in a row run the same ops on the same tensors: tensors that are not written between them, plain
arguments that are equal, no random numbers, no graph. Over the whole run, a module that nothing changes gets inputs
that it had in an earlier step, as in each epoch after the first; also one whose parameters need gradients, if no
optimizer has them. Functions of the user's are also seen in the step that
is traced by line: one that returns the same tensors and reads nothing that changes. It takes 5% of the step or more.

Causes: a helper that is called in `forward` instead of in `__init__`; a frozen encoder that runs on the same prompts,
or on the same samples in each epoch; a mean over the dataset where a batch is drawn.

Fix: compute it once and keep it.

    self.register_buffer("bias", neighbours(), persistent=False)      # in __init__

    @functools.cache                                                  # or at the function
    def neighbours() -> Tensor: ...

Saving: the time of the calls, with an error of a quarter.

Source: two steps whose ops are listened to, on a CPU, and one that is traced by line, in which Python is slower than in
others; of a frozen module some elements of each sample that it gets. The thresholds are 5% of the step, and 40% of its
inputs (chosen). 25% for the error of a single step was chosen, as for unexpected-call-count.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from perfkit._format import percent, shown_function, times
from perfkit._location import Location
from perfkit.findings import Evidence, Finding
from perfkit.ledger.ledger import Ledger
from perfkit.ledger.rows import COMPUTING, PYTHON, Selector
from perfkit.ledger.step_budget import StepBudget
from perfkit.rules._settings import first_call
from perfkit.rules.python._parametrized import parametrized_at, parametrized_module, weight_advice
from perfkit.rules.python._traced_calls import cost_of_calls
from perfkit.run.records import ConstantOps, Lines, Rank, RecomputedOutputs, TracedLine

ID = "repeated-work"
CLAIMS = (*COMPUTING, *PYTHON, Selector(phase="data"))

#: The share of a frozen module's inputs that came before, from which on it is reported (chosen): half of them in two
#: epochs. A search that asks for some positions again has less.
_AGAIN = 0.4
#: The error of shares that come from one traced step: chosen.
_ERROR = 0.25

#: What trl's Trainers that compare with a reference model are configured by.
_KEEP_REFERENCE = ("DPOConfig(...)", "KTOConfig(...)")


def check(step: StepBudget, lines: Lines, ledger: Ledger | None = None, rank: Rank | None = None) -> Iterator[Finding]:
    """Find functions that return the same tensors in every step, and lines whose ops do."""
    known = set()
    for row in lines.traced:
        for calls in row.constants:
            cost = round(cost_of_calls(calls.host_ns, row, lines, step, backward=False))
            if step.is_negligible(cost):
                continue
            known |= {(row.file, row.line), (calls.called.file, calls.called.function)}
            name = shown_function(calls.called)
            yield _finding(
                step,
                cost,
                spent=_busiest_line_of(calls.called, lines),
                change=row.at,
                message=(
                    f"{name} returns the same tensors in every step and is called "
                    f"{times(calls.calls)} per step: {step.shown(cost)}."
                ),
                advice=f"Call {name} once and keep the result (a buffer of the module, a cache).",
                evidence=Evidence.ms(
                    f"{name} called in line {row.line}", cost, f"{calls.calls} calls in the traced step"
                ),
            )
    for ops in lines.constant_ops:
        inside = ops.called or ops
        if not known & {(ops.file, ops.line), (inside.file, inside.function)}:
            found = list(_of_ops(step, ops, lines, ledger, rank))
            yield from found
            if found:
                known |= {(ops.file, ops.line), (inside.file, inside.function)}
    groups: dict[tuple[str, str, str | None, str | None], list[RecomputedOutputs]] = {}
    for outputs in lines.recomputed_outputs:
        groups.setdefault((outputs.module, outputs.file, outputs.function, outputs.of), []).append(outputs)
    for group in groups.values():
        # A finding on ops of one of the lines hides the others: both advise to call the module, or its caller, once.
        if not any(known & {(outputs.file, outputs.line), (outputs.file, outputs.function)} for outputs in group):
            of_lines = [one for outputs in group if (one := _called_again(outputs, lines, step)) is not None]
            yield from _of_outputs(step, sorted(of_lines, key=lambda one: -one.ns), rank)


class _Again(NamedTuple):
    """Calls from one line of a module that had its inputs before; ``ns`` is all their time in a step.

    ``backward`` is whether that of their backward is in it.
    """

    outputs: RecomputedOutputs
    row: TracedLine
    ns: float
    backward: bool


def _called_again(outputs: RecomputedOutputs, lines: Lines, step: StepBudget) -> _Again | None:
    """What these calls cost; None where too few of their inputs came again, or where equal inputs say little.

    An answer depends on more than the inputs if random numbers are drawn for it, or something else is trained in it.
    """
    found = [
        (calls, row)
        for row in lines.traced
        for calls in row.modules
        if (row.file, row.line, calls.module) == (outputs.file, outputs.line, outputs.module)
    ]
    if outputs.again < _AGAIN * outputs.inputs or not found or any(one.draws or one.passes_on for one, _ in found):
        return None
    row, backward = found[0][1], any(calls.reached for calls, _ in found)
    if backward and any(one.gradients is not None and one.gradients.is_grad for one in lines.traced):
        return None  # the program may ask for the gradients of the module's parameters
    ns = cost_of_calls(sum(calls.host_ns for calls, _ in found), row, lines, step, backward=backward)
    return _Again(outputs, row, ns, backward)


def _of_outputs(step: StepBudget, group: list[_Again], rank: Rank | None) -> Iterator[Finding]:
    all_ns = sum(one.ns for one in group)
    cost = round(sum(one.ns * one.outputs.again / one.outputs.inputs for one in group))
    if not group or step.is_negligible(cost):
        return
    outputs, row, *_ = group[0]
    again, inputs = sum(one.outputs.again for one in group), sum(one.outputs.inputs for one in group)
    name, backward = outputs.module, any(one.backward for one in group)
    at_lines = f"line{'s' * (len(group) > 1)} {' and '.join(map(str, sorted({one.row.line for one in group})))}"
    argument = _of_reference(rank)
    trains = step.counted_by is None or step.counted_by.by not in ("module", "round")
    # Where nothing trains, what is left to choose is which inputs the function of the call gets.
    caller = None if trains else outputs.called_from
    before = ", before training," if trains else ""
    once = f"Call {name} once for each input{before} and keep the results where they fit in memory"
    once += ", under torch.no_grad()" if backward else ""
    yield _finding(
        step,
        cost,
        spent=row.at,
        change=argument or caller or row.at,
        message=(
            f"{name}, which nothing trains, got {percent(again, inputs)} of its inputs in an earlier "
            f"step already{f', in {at_lines}' if len(group) > 1 else ''}: {step.shown(cost)}"
            f"{', the backward included' if backward else ''}."
        ),
        advice=f"{once}{' (of trl: precompute_ref_log_probs=True)' if argument is not None else ''}.",
        evidence=Evidence.ms(f"calls of {name} in {at_lines}", all_ns, f"{again:,} of {inputs:,} inputs came again"),
    )


def _of_reference(rank: Rank | None) -> Location | None:
    """The argument of trl that keeps what a reference model computes, or the call that takes it; None for none."""
    if rank is None:
        return None
    configs = (at for at in rank.calls.get("TrainingArguments", ()) if at.function in _KEEP_REFERENCE)
    return first_call(rank, "precompute_ref_log_probs") or next(configs, None)


def _of_ops(
    step: StepBudget, ops: ConstantOps, lines: Lines, ledger: Ledger | None, rank: Rank | None
) -> Iterator[Finding]:
    # Their time is the thread's own, of one step: another recorded step knows how long their lines take at most.
    cost = ledger.as_wall(_at_most(ops, ledger)) if ledger is not None else min(ops.host_ns, step.wall_ns)
    if step.is_negligible(cost):
        return
    what = shown_function(ops.called) if ops.called is not None else f"line {ops.line}"
    kept = f"Call {what}" if ops.called is not None else f"Compute this part of {what}"
    by_module = (
        f"Let the module keep it, if it has an argument for that (PyTorch Geometric: cached=True, where all calls get "
        f"the same graph); else {kept[0].lower()}{kept[1:]}"
    )
    advice = (
        f"{kept if ops.made_at is None else by_module} once, before the loop, and keep the result "
        "(a buffer of the module, a cache)."
    )
    module = parametrized_module(lines, ops.at, ops.busiest)
    made_at = ops.made_at
    if module is not None:
        advice, made_at = weight_advice(module, is_trained=False), parametrized_at(rank)
    yield _finding(
        step,
        cost,
        spent=ops.busiest,
        change=made_at or ops.at,
        message=(
            f"{what[0].upper() + what[1:] if ops.called is None else what} computes the same in every step, in "
            f"{ops.ops} op{'s' if ops.ops > 1 else ''} on tensors that do not change: {step.shown(cost)}."
        ),
        advice=advice,
        evidence=Evidence.ms(f"constant ops below line {ops.line}", cost, f"{ops.ops} ops, equal in two steps"),
    )


def _at_most(ops: ConstantOps, ledger: Ledger) -> int:
    """Their time, and no more than the rows of the ledger at their line, or in the function that it calls."""
    inside = ops.called or ops
    rows = [
        row.ns
        for row in ledger.rows
        if row.at is not None
        and (row.at.file, row.at.function) == (inside.file, inside.function)
        and (ops.called is not None or row.at.line == ops.line)
        and row.owner in ("computing", "op overhead", "python")
    ]
    return min(ops.host_ns, sum(rows)) if rows and ops.busiest.function == inside.function else ops.host_ns


def _finding(
    step: StepBudget, cost: int, *, spent: Location, change: Location, message: str, advice: str, evidence: Evidence
) -> Finding:
    saving = (1 - _ERROR) * cost, min(step.wall_ns, (1 + _ERROR) * cost)
    return step.finding(
        cost=cost, saving=saving, spent=spent, change=change, message=message, advice=advice, evidence=(evidence,)
    )


def _busiest_line_of(called: Location, lines: Lines) -> Location:
    rows = [one for one in lines.traced if (one.file, one.function) == (called.file, called.function)]
    return max(rows, key=lambda one: one.host_ns).at if rows else called
