"""Logging stops the training.

Problem: what people read (scalars, histograms, pictures, lines of text, a file with the whole history) is prepared and
written between two steps, by the process that trains.

How it shows: 5% of the mean step or more is spent in a library that logs (TensorBoard, Weights & Biases, mlflow,
logging, matplotlib, a progress bar ...), in files that are written after the model ran, or in the phase "logging" where
an integration measures it. Or, on a CPU, 10% in a function that trains nothing, in lines that give the values of
tensors to the host (`tolist()`, `item()`, `numpy()`), unless training reads them.

Causes: histograms of all weights in every step; a history that is written as a whole each time, so that each write
takes longer; a file that is opened, flushed and synced for each line; pictures drawn in the loop.

Fix: log less often and less at a time, and do not wait for the disk.

    if step % 100 == 0:
        writer.add_histogram(name, weight, step)

    log.write(json.dumps(row) + "\\n")        # one line per step into an open file, not the whole history

Saving: at most all of that time, with the error of sampling, and on a CPU 15% more, because the rest of the step then
finds its caches as it left them. At least three quarters of it: every fourth time instead of each.

Source: time is sampled every 10 ms outside windows; libraries are known by name (`perfkit.measures.host.host_work`),
lines that read values by the source. The threshold is 5% of the mean step, and 25% where a few long steps hold all of
it, as at the ends of epochs. 10% and three quarters were chosen.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from perfkit._format import shown_function, times
from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import COMPUTING, Selector
from perfkit.ledger.step_budget import CRITICAL, SMALL, MeanStepBudget, shows_amount
from perfkit.measures.host.callers import Function
from perfkit.measures.results.host import HostWork
from perfkit.measures.results.loop import LoopTime
from perfkit.rules._host_work import CERTAIN_SAMPLES, LESS_OFTEN, less_often, samples_of_reads, time_of, work_of
from perfkit.rules._places import how_often, training_functions
from perfkit.run.records import LineRow, Lines

ID = "logging-in-step"
CLAIMS = (Selector(owner="logging"), Selector(owner="callbacks"), Selector(owner="python"), *COMPUTING)
#: What is written there is mostly not needed.
FOLLOWS_AT_LINE = ("saved-views",)


def check(
    step: MeanStepBudget,
    works: tuple[HostWork, ...] = (),
    lines: Lines | None = None,
    loop: LoopTime | None = None,
) -> Iterator[Finding]:
    """Find time in loggers, and the line that logs; and what is computed for numbers that the host reads."""
    if lines is not None and not step.on_device:
        yield from _values(step, lines)
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


def _values(step: MeanStepBudget, lines: Lines) -> Iterator[Finding]:
    """Functions that train nothing and compute values that they read: statistics of weights, of gradients."""
    read = {(at.file, at.line) for at in lines.host_reads}
    training = training_functions(lines)
    asking = _asking_in_rare_steps(lines)
    total = sum(row.samples for row in lines.rows if row.worker is None)
    found: dict[Function, list[tuple[LineRow, int]]] = defaultdict(list)
    for row in lines.rows:
        samples = samples_of_reads(row)
        is_input = row.at in lines.training_inputs or row.called_from in lines.training_inputs
        is_input |= (row.file, row.function) in asking
        if (row.file, row.line) in read and samples and not is_input and row.phase not in ("data", "validation"):
            found[row.file, row.function].append((row, samples))
    for function, rows in found.items():
        samples = sum(own for _, own in rows)
        cost = min(step.wall_ns, sum(row.host_ns * own // max(1, row.samples) for row, own in rows))
        if function in training or not shows_amount(samples, total) or cost < SMALL * step.wall_ns:
            continue
        hottest = max(rows, key=lambda one: one[1])[0]
        runs = sum(one.runs for one in lines.traced if (one.file, one.line) == (hottest.file, hottest.line))
        often = f", {times(runs)} per step in line {hottest.line}" if runs else ""
        yield step.finding(
            cost=cost,
            saving=(
                step.minimum_saving(LESS_OFTEN * cost, samples=samples),
                step.maximum_saving(cost, samples=samples),
            ),
            spent=hottest,
            change=how_often(hottest, lines),
            message=f"{function[1]} computes values that only the host reads{often}: {step.shown(cost)}.",
            advice="Compute and log such values at most a quarter as often.",
            confidence="high" if samples >= CERTAIN_SAMPLES else "medium",
            evidence=(Evidence.ms(f"time in {function[1]}", cost, f"{samples} samples of stacks"),),
        )


def _asking_in_rare_steps(lines: Lines) -> set[Function]:
    """Functions that only a rare step calls, where they ask models without gradients: a rollout reads the answers."""
    rare = lines.rare_step.lines if lines.rare_step is not None else ()
    always = {(row.file, row.function) for row in lines.traced}
    asking: set[Function] = {
        (row.file, row.function) for row in rare if any(not calls.builds_graph for calls in row.modules)
    }
    return asking - always
