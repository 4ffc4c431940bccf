"""A few long steps take much of the training, in a fixed rhythm, or a single one most of it.

Problem: every so many steps the loop does something else than train: it plays a rollout, generates samples, draws
pictures, evaluates by hand. One such step takes as long as many others, and the typical step does not show it.

How it shows: every n-th step, in at least four of five cases and more often than chance explains, takes at least 1.5
times the typical step, and what these steps take beyond it is 5% of the mean step or more; or one step takes most of
the loop.

Causes: a rollout or a generation that runs one sample, one token or one environment at a time; a model called again
and again with the same input; the model called with gradients, or in training mode, where nobody needs a backward; an
interval that is still as small as in a first trial.

Fix: do it in batches, without gradients, or less often.

    with torch.inference_mode():
        actions = policy(torch.stack(observations))        # all environments in one call

    if step % 1000 == 0:                                   # not: % 16
        samples = model.generate(prompts)                  # all prompts in one call

Saving: at most all of the time beyond the typical step, and on a CPU 15% more, because the rest of the step then finds
its caches as it left them. At least half of it: half as often, or two samples in one call.

Source: the step clock; the rhythm is tested against steps that are long by chance. Lines are sampled, and those that an
ordinary step runs do not count. It is no warning where training reads what is computed, by the source: how much of a
rollout is needed is not known; calls one by one, or with the same input, are not needed. One such step is traced by
line, where the run has enough of them to foresee the next. Validation and checkpoints (they have phases of their own),
loaders, garbage collection, compilation, logging and steps that train more (a second network, accumulation) are not
reported here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfkit._format import ms, times
from perfkit._location import Location
from perfkit.findings import Evidence, Finding
from perfkit.ledger.step_budget import MAJORITY, MeanStepBudget
from perfkit.measures.results.host import HostWork
from perfkit.measures.results.loop import LoopPart, LoopTime, ordinal
from perfkit.rules._cheaper_ops import cheaper_than
from perfkit.rules._places import interval_of, library_called, row_at
from perfkit.rules.data._loader_use import LoaderUse
from perfkit.rules.python._rare_work import RareWork, rare_work
from perfkit.run.records import EXPENSIVE_CALLS, LineRow, Lines, Rank

ID = "rare-steps"
#: The ledger is of the typical step, which has none of this time.
CLAIMS = ()
FOLLOWS_AT_LINE = ("input-bound", "checkpoint-in-step", "logging-in-step", "validation-too-often", "saved-views")

#: The share that is saved at least: half as often, or two samples in one call (chosen).
_MINIMUM = 0.5
#: What comes in every 20th step or less often is as seldom as people choose in a first trial (chosen).
_SELDOM = 20


def check(
    step: MeanStepBudget,
    loop: LoopTime,
    works: tuple[HostWork, ...] = (),
    loader: LoaderUse | None = None,
    lines: Lines | None = None,
    rank: Rank | None = None,
) -> Iterator[Finding]:
    """Find steps that are long in a rhythm, what they take beyond the others, and the line in which that passes."""
    calls_are_steps = step.counted_by is not None and step.counted_by.module is not None
    for part in loop.rare:
        cost = min(step.wall_ns, round(part.total_ns / max(1, loop.steps)))
        if step.is_negligible(cost) or _has_its_own_rule(part, works, loader) or _is_regrown(part, loop, lines):
            continue
        each = round(part.total_ns / max(1, part.steps))
        which = f"Every {ordinal(part.every)} step" if part.every is not None else f"One of {loop.steps:,} steps"
        trainer = library_called(part.called or part.at, lines) if part.at is not None else ""
        work = rare_work(part.at, lines) if not trainer else None
        cheaper = _cheaper(part, work, rank)
        is_needed = part.for_training and (work is None or work.is_needed) and cheaper is None
        spent = work.at if work is not None and work.kind == "line" else part.called or part.at
        function = f", in {spent.function}" if spent is not None and spent.function and spent != part.at else ""
        yield step.finding(
            cost=cost,
            saving=(_MINIMUM * cost, step.maximum_saving(cost)),
            spent=spent,
            change=_to_edit(part, work, lines) if cheaper is None else None,
            message=(
                f"{which} takes {ms(loop.typical_ns + each)}, {times(part.longer or 1)} "
                f"as long as the typical one{function}: {step.shown(cost)}.{work.sentence if work is not None else ''}"
            ),
            advice=cheaper or _advice(part, trainer, work, lines),
            # None of the user's code runs meanwhile: which part of the Trainer does is not known. Where calls of a
            # model are the steps, the rhythm is that of requests: the first call reads the input, others go on from it.
            # A rollout is what its algorithm takes, as far as the clock can tell.
            severity="info" if trainer or calls_are_steps or is_needed else None,
            confidence="high" if part.at is not None else "medium",
            evidence=(
                Evidence("long steps", part.steps, "", f"{which[0].lower()}{which[1:]}, of {loop.steps} in all"),
                Evidence.ms("typical step", loop.typical_ns, step.source),
                Evidence.ms("longer by", each, f"the mean of them, most of it in the phase {part.phase}"),
                *((work.evidence,) if work is not None else ()),
                *((Evidence("training reads what it computes", "yes", "", "the source"),) if part.for_training else ()),
                Evidence("the typical step covers", round(100 * loop.covered, 1), "% of the loop", "all rows"),
            ),
        )


def _cheaper(part: LoopPart, work: RareWork | None, rank: Rank | None) -> str | None:
    """What to call instead, where the line that takes most of the step calls an op with a cheaper counterpart."""
    place = work.at if work is not None and work.kind == "line" else part.called or part.at
    if rank is None or place is None or (work is not None and not work.is_needed):
        return None
    called = (
        name
        for name in EXPENSIVE_CALLS
        if any((at.file, at.line) == (place.file, place.line) for at in rank.calls.get(name, ()))
    )
    return next((text for name in called if (text := cheaper_than(name)) is not None), None)


def _to_edit(part: LoopPart, work: RareWork | None, lines: Lines | None) -> Location | None:
    """What is not needed; else the interval of what comes often, and of what is seldom, or is needed, the work."""
    if work is not None and not work.is_needed:
        return work.at
    place = work.at if work is not None and work.kind in ("single", "line") else part.at
    often = not part.for_training and part.every is not None and part.every < _SELDOM
    if not often and work is None and _is_python(part, lines):
        return part.called or part.at
    if not often or (work is not None and work.kind == "line" and not _helps_less_often(row_at(work.at, lines))):
        return place
    return interval_of(lines, part.at, part.called) or place


def _helps_less_often(row: LineRow | None) -> bool:
    """Whether a line mostly waits, or calls a library that draws or writes a file: nothing in it is to be edited."""
    if row is None:
        return True
    others = sum(count for within, count in row.within.items() if within and not within.startswith("torch"))
    return max(others, sum((row.waiting or {}).values())) > MAJORITY * row.samples


def _advice(part: LoopPart, trainer: str, work: RareWork | None, lines: Lines | None) -> str:
    if trainer:
        return f"Make epochs longer, and set how often {trainer} evaluates, logs and saves."
    if work is not None and not work.is_needed:
        return work.advice
    return (
        f"{_IN_PYTHON if _is_python(part, lines) else _IN_BATCHES}"
        f"{', or in processes beside the training' if part.for_training else ', or less often'}."
    )


_IN_BATCHES = "Do this work in batches, under torch.inference_mode() where it needs no gradients"
_IN_PYTHON = "Do this work with sets or dicts and on whole arrays instead of element by element in Python"


def _is_python(part: LoopPart, lines: Lines | None) -> bool:
    """Whether the hottest line calls no library most of the time."""
    row = row_at(part.called or part.at, lines)
    return row is not None and row.within.get("", 0) > MAJORITY * row.samples


def _has_its_own_rule(part: LoopPart, works: Sequence[HostWork], loader: LoaderUse | None) -> bool:
    """Whether another rule judges this time, by its own threshold."""
    if not part.is_other_work:
        return True
    if part.phase == "data" and loader is not None and loader.dataset is not None:
        return True
    places = {_line(place) for place in (part.at, part.called) if place is not None}
    known = (line for work in works if work.kind in ("logging", "checkpoint") for line in work.lines)
    return any(places & {_line(line), _line(line.called_from)} for line in known)


def _is_regrown(part: LoopPart, loop: LoopTime, lines: Lines | None) -> bool:
    """Whether most of it is a text that is written without a cache, which generation-without-cache reports."""
    calls = lines.regrown_inputs if lines is not None else ()
    per_step_ns = sum(one.host_ns for one in calls if one.phase != "validation")
    return per_step_ns * loop.steps > MAJORITY * part.total_ns


def _line(place: Location | None) -> tuple[str, int] | None:
    return (place.file, place.line) if place is not None and place.line is not None else None
