"""Validation takes a large part of the training's time.

Problem: the validation set is evaluated so often that training mostly waits for it, and two results so close together
show little more than one.

How it shows: validation takes 20% of the mean step or more, steps with a validation included. Or a function that runs
several times per step with a backward, as the closure of an L-BFGS step, also calls the model without gradients.

Causes: an error that is computed in the closure; eval_steps or val_check_interval still as small as in a first trial; a
validation set as large as the training set; training steps that became faster while validation did not.

Fix: validate less often, on a part of the set, or with larger batches, because no activations are kept for a backward.

    if step % 1000 == 0:                                       # not: % 8
        validate(model, held_out)

    Trainer(val_check_interval=1.0, limit_val_batches=50)      # Lightning

    DataLoader(held_out, batch_size=256)                       # and torch.inference_mode() around it

Saving: at most all of that time, and on a CPU 15% more, because the rest of the step then finds its caches as it left
them. At least three quarters of it: a quarter as often, or as much.

Source: the phase is measured, not sampled. 20% and three quarters were chosen: validating a tenth of the data after
each epoch takes about 4% of the time.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import times
from perfkit._location import Location
from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import COMPUTING, Selector
from perfkit.ledger.step_budget import MAJORITY, MeanStepBudget
from perfkit.measures.results.steps import TypicalStep
from perfkit.rules._host_work import LESS_OFTEN
from perfkit.rules._places import interval_of, library_called, trainer_argument
from perfkit.rules._settings import first_call
from perfkit.rules.python._rare_work import rare_validation
from perfkit.rules.python._traced_calls import cost_of_calls
from perfkit.run.records import Lines, Rank, RegrownInputs

ID = "validation-too-often"
CLAIMS = (Selector(owner="validation"), *COMPUTING)

#: The share of the mean step from which on validation is reported: chosen, it allows a validation set of half the
#: training set's size (a forward is a third of a step).
_SHARE = 0.2
#: Calls per step from which on it is "several times" (chosen): the first of a line search's evaluations is needed.
_OFTEN = 3
_ADVICE = "Validate a quarter as often, on a part of the set, or with larger batches under torch.inference_mode()."
_REDUCE = (
    "Where compute_metrics only takes the argmax, take it in preprocess_logits_for_metrics=lambda logits, labels: "
    "logits.argmax(-1) (logits[0] where the model returns several) and no more in compute_metrics: else the Trainer "
    "keeps the logits of all batches, and copies all of them again for each further one."
)
#: Arguments of a Trainer that decide how often it validates.
_ARGUMENTS = ("val_check_interval", "check_val_every_n_epoch", "eval_steps", "eval_strategy", "evaluation_strategy")


def check(
    step: MeanStepBudget, typical: TypicalStep, lines: Lines | None = None, rank: Rank | None = None
) -> Iterator[Finding]:
    """Find a large part of the time in validation, in a run that trains."""
    if lines is not None:
        yield from _in_closures(step, lines)
    validation = step.phase("validation")
    trains = typical.phases_ns.backward or typical.phases_ns.optimizer
    if validation is None or not trains or validation.ns < _SHARE * step.wall_ns:
        return
    cost = min(step.wall_ns, validation.ns)
    regrown = sum(one.host_ns for one in lines.regrown_inputs if _in_validation(one, lines)) if lines is not None else 0
    if regrown > MAJORITY * cost:
        return  # generation-without-cache reports it
    line = _calling_line(lines) if lines is not None else None
    trainer = library_called(line, lines) if line is not None else ""
    work = rare_validation(lines)
    setting = trainer_argument(rank, trainer, *_ARGUMENTS) or interval_of(lines, line)
    keeps_scores_at = _keeps_scores_at(rank) if trainer == "transformers" else None
    change = work.at if work is not None else keeps_scores_at or setting
    advice = _ADVICE if keeps_scores_at is None else f"{_ADVICE} {_REDUCE}"
    yield step.finding(
        cost=cost,
        saving=(LESS_OFTEN * cost, step.maximum_saving(cost)),
        spent=line,
        change=change,
        message=f"Validation takes {step.shown(cost)}, steps without one included.{work.sentence if work else ''}",
        advice=work.advice if work is not None else advice,
        confidence="high",
        evidence=(Evidence.ms("validation", cost, step.source), *((work.evidence,) if work is not None else ())),
    )


def _in_validation(one: RegrownInputs, lines: Lines) -> bool:
    """Whether an evaluation writes this text; its first batch counts as "other" where gradients are enabled."""
    traced = (*lines.traced, *(lines.rare_step.lines if lines.rare_step is not None else ()))
    places = {(row.file, row.line) for row in traced if row.phase == "validation"}
    return one.phase == "validation" or (one.phase == "other" and (one.file, one.line) in places)


def _in_closures(step: MeanStepBudget, lines: Lines) -> Iterator[Finding]:
    """Evaluations of a trained model in what an optimizer's step calls several times, with a backward each time."""
    trained = {calls.module for row in lines.traced for calls in row.modules if calls.builds_graph}
    backwards = {(row.file, row.function) for row in lines.rows if row.phase == "backward"}
    updates = {(row.file, row.line) for row in lines.rows if row.phase == "optimizer"}
    closures = {
        (row.file, row.line)
        for row in lines.traced
        if row.runs >= _OFTEN
        and (row.file, row.function) in backwards
        and any((by.file, by.line) in updates for by in row.callers)
    }
    for row in lines.traced:
        caller = next(iter(row.callers), None)
        if caller is None or (caller.file, caller.line) not in closures or (row.file, row.function) in backwards:
            continue
        for calls in row.modules:
            if calls.builds_graph or calls.calls < _OFTEN or calls.module not in trained:
                continue
            cost = min(step.wall_ns, round(cost_of_calls(calls.host_ns, row, lines, step, backward=False)))
            if step.is_negligible(cost):
                continue
            yield step.finding(
                cost=cost,
                saving=(LESS_OFTEN * (1 - 1 / calls.calls) * cost, step.maximum_saving(cost)),
                spent=row,
                change=caller,
                message=(
                    f"{row.function} evaluates {calls.module} without gradients {times(calls.calls)} per step, as "
                    f"often as the loss is computed: {step.shown(cost)}."
                ),
                advice="Evaluate once per step, after the optimizer's step, or less often.",
                evidence=(Evidence.ms("calls without gradients", cost, f"{calls.calls} calls in the traced step"),),
            )


def _keeps_scores_at(rank: Rank | None) -> Location | None:
    """The line that gives a Trainer of transformers ``compute_metrics``, if the logits are not reduced before."""
    if rank is None or "TrainingArguments" not in rank.calls or "preprocess_logits_for_metrics" in rank.calls:
        return None
    return first_call(rank, "compute_metrics")


def _calling_line(lines: Lines) -> Location | None:
    """The line of the training function from which the hottest line of validation was reached, else that line.

    Where no sample shows it, the line that calls a Trainer, which trains and validates.
    """
    rows = [row for row in lines.rows if row.worker is None]
    hottest = min(
        (row for row in rows if row.phase == "validation"),
        key=lambda row: (row.owner != "user", -row.samples),
        default=None,
    )
    if hottest is None:
        trains = (row.at for row in rows if row.phase == "backward" and library_called(row.at, lines))
        return next(trains, None)
    training = {(row.file, row.function) for row in rows if row.phase in ("backward", "optimizer")}
    callers = {(row.file, row.function): row.called_from for row in reversed(rows)}
    at, caller = hottest.at, hottest.called_from
    seen = set()
    while caller is not None and caller not in seen and (at.file, at.function) not in training:
        seen.add(caller)
        at, caller = caller, callers.get((caller.file, caller.function or ""))
    return at
