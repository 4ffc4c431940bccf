"""Saving checkpoints stops the training.

Problem: `torch.save` writes all parameters and the optimizer's state to a file while training waits. Once an hour that
costs nothing noticeable; every few steps it is a part of the training's time.

How it shows: 5% of the mean step or more, steps with a checkpoint included, is spent in torch.save, in another library
that saves, or in the phase "checkpoint" where an integration measures it.

Causes: save_steps or every_n_train_steps still as small as in a first trial; a checkpoint of everything where the
parameters would do; a slow or remote disk; the best weights so far, copied in memory whenever the loss falls.

Fix: save as rarely as the work you can afford to lose allows, and in the background.

    if step % 1000 == 0:                                  # not: % 4
        torch.save(state, path)

    TrainingArguments(save_steps=1000)

    torch.distributed.checkpoint.async_save(state, checkpoint_id=path)   # copies, then writes in the background

Saving: at most all of that time, with the error of sampling, and on a CPU 15% more, because the rest of the step then
finds its caches as it left them. At least three quarters of it: a quarter as often.

Source: time is sampled every 10 ms outside windows, or measured by the integration. The threshold is 5% of the mean
step: half a minute every 20 minutes is below it. Three quarters was chosen.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from perfkit.findings import Finding
from perfkit.ledger.rows import Selector
from perfkit.ledger.step_budget import MAJORITY, MeanStepBudget
from perfkit.measures.results.host import HostWork
from perfkit.measures.results.loop import LoopTime
from perfkit.rules._host_work import less_often, time_of, work_of
from perfkit.rules._places import how_often, library_called, trainer_argument
from perfkit.run.records import Lines, Rank

ID = "checkpoint-in-step"
CLAIMS = (Selector(owner="checkpoint"),)
#: What is saved there is mostly not needed.
FOLLOWS_AT_LINE = ("saved-views",)

#: Arguments of a Trainer that decide how often it saves.
_ARGUMENTS = ("save_steps", "save_strategy", "every_n_train_steps", "ModelCheckpoint")


def check(
    step: MeanStepBudget,
    works: tuple[HostWork, ...] = (),
    lines: Lines | None = None,
    rank: Rank | None = None,
    loop: LoopTime | None = None,
) -> Iterator[Finding]:
    """Find time in saving, and the line that saves."""
    work = work_of(works, "checkpoint", loop)
    cost = time_of(work, "checkpoint", step)
    if step.is_negligible(cost):
        return
    if work is not None and lines is not None:
        work = _views_first(work, lines)
    saves = work.lines[0] if work is not None else None
    trainer = library_called(saves, lines) if saves is not None else ""
    copies = saves is not None and saves.within.startswith("copy")
    what = "Copying weights (copy.deepcopy)" if copies else "Saving checkpoints"
    yield less_often(
        work,
        cost,
        step,
        message=f"{what} takes {step.shown(cost)}, steps without {'one' if copies else 'a checkpoint'} included.",
        advice="Save at most a quarter as often, only what is needed to resume, or in the background (async_save).",
        change=trainer_argument(rank, trainer, *_ARGUMENTS) or how_often(saves, lines),
    )


def _views_first(work: HostWork, lines: Lines) -> HostWork:
    """The work with the line that saves views first, where most of it is there: saved-views explains it."""
    places = {(one.file, one.line) for one in lines.saved_views}
    most = max(work.lines, key=lambda line: line.host_ns)
    if (most.file, most.line) not in places or most.host_ns <= MAJORITY * work.host_ns:
        return work
    return msgspec.structs.replace(work, lines=(most, *(line for line in work.lines if line is not most)))
