"""Logging stops the training.

Problem: what people read (scalars, histograms, pictures, lines of text, a file with the whole history) is prepared and
written between two steps, by the process that trains.

How it shows: 5% of the mean step or more is spent in a library that logs (TensorBoard, Weights & Biases, mlflow,
logging, matplotlib, a progress bar ...), in files that are written after the model ran, or in the phase "logging" where
an integration measures it.

Causes: histograms of all weights in every step; a history that is written as a whole each time, so that each write
takes longer; a file that is opened, flushed and synced for each line; pictures drawn in the loop.

Fix: log less often and less at a time, and do not wait for the disk.

    if step % 100 == 0:
        writer.add_histogram(name, weight, step)

    log.write(json.dumps(row) + "\\n")        # one line per step into an open file, not the whole history

Saving: at most all of that time, with the error of sampling, and on a CPU 15% more, because the rest of the step then
finds its caches as it left them. At least three quarters of it: every fourth time instead of each.

Source: time is sampled every 10 ms outside windows; libraries are known by name (`perfkit.measures.host.host_work`).
The threshold is 5% of the mean step, and 25% where a few long steps hold all of it, as at the ends of epochs. Three
quarters was chosen.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import shown_function
from perfkit.findings import Finding
from perfkit.ledger.rows import Selector
from perfkit.ledger.step_budget import CRITICAL, MeanStepBudget
from perfkit.measures.results.host import HostWork
from perfkit.measures.results.loop import LoopTime
from perfkit.rules._host_work import less_often, time_of, work_of
from perfkit.rules._places import how_often
from perfkit.run.records import Lines

ID = "logging-in-step"
CLAIMS = (Selector(owner="logging"), Selector(owner="callbacks"), Selector(owner="python"))


def check(
    step: MeanStepBudget,
    works: tuple[HostWork, ...] = (),
    lines: Lines | None = None,
    loop: LoopTime | None = None,
) -> Iterator[Finding]:
    """Find time in loggers, and the line that logs."""
    work = work_of(works, "logging", loop)
    cost = time_of(work, "logging", step)
    if step.is_negligible(cost - step.rare_ns) and cost < CRITICAL * step.wall_ns:
        return
    function = f", most of it in {shown_function(work.lines[0])}" if work is not None else ""
    yield less_often(
        work,
        cost,
        step,
        message=f"Logging takes {step.shown(cost)}{function}.",
        advice="Log at most a quarter as often, one line or a few numbers at a time, and keep the file open.",
        change=how_often(work.lines[0], lines) if work is not None else None,
    )
