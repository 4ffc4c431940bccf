"""Saving checkpoints holds up the training.

Problem: `torch.save` turns all parameters and the optimizer's state into a file while training stands
still. Seldom it costs nothing that anyone sees; every few steps it is a part of the training's time.

How it shows: 5% of the mean step or more, steps with a checkpoint included, passes in torch.save, in
another library that saves, or in the phase "checkpoint" where an integration tells one.

Causes: save_steps or every_n_train_steps as small as in a first trial; a checkpoint of everything where
the parameters would do; a slow or remote disk.

Fix: as seldom as a lost hour of work is worth, and beside the training.

    if step % 1000 == 0:                                  # not: % 4
        torch.save(state, path)

    TrainingArguments(save_steps=1000)

    torch.distributed.checkpoint.async_save(state, checkpoint_id=path)   # copies, then writes in the background

Gain: at most all of it, with the error of sampling, and on a CPU 15% more, since the rest then finds its
caches as it left them. At least three quarters: a quarter as often.

Source: time is sampled (every 10 ms, outside of windows) or told by the integration. From 5% of the mean
step on: whoever saves every 20 minutes, for half a minute, is below it.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms, percent
from perfkit.findings import Finding
from perfkit.measures.results.measured import Measured
from perfkit.rules._host_work import found_in, mean_step, time_of, work_of
from perfkit.rules._step_budget import NEGLIGIBLE

ID = "checkpoint-in-step"


def check(measured: Measured) -> Iterator[Finding]:
    """Find time in saving, and the line that saves."""
    whole = mean_step(measured)
    if whole is None:
        return
    cost_ns = time_of(measured, "checkpoint", "checkpoint", whole)
    if cost_ns < NEGLIGIBLE * whole.wall_ns:
        return
    yield found_in(
        measured,
        work_of(measured, "checkpoint"),
        cost_ns,
        whole,
        rule=ID,
        message=(
            f"Saving checkpoints takes {ms(cost_ns)} of the mean step of {ms(whole.wall_ns)} "
            f"({percent(cost_ns, whole.wall_ns)}), steps without one included."
        ),
        advice="Save a quarter as often or less, only what is needed to go on, or in the background (async_save).",
    )
