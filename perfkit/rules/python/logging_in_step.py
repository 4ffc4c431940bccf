"""Logging holds up the step.

Problem: what is written for people (scalars, histograms, pictures, lines of text, a file of the whole
history) is made and written between two steps, by the process that trains.

How it shows: 5% of the mean step or more passes in a library that logs (TensorBoard, Weights & Biases,
mlflow, logging, matplotlib, a progress bar ...), in files that are written after the model has run, or in
the phase "logging" where an integration tells one.

Causes: histograms of all weights in every step; a history that is written whole each time, so that it
takes longer and longer; a file that is opened, flushed and synced per line; pictures drawn in the loop.

Fix: less often, less at a time, and not by waiting for the disk.

    if step % 100 == 0:
        writer.add_histogram(name, weight, step)

    log.write(json.dumps(row) + "\\n")        # one line per step, the file stays open; not the whole history

Gain: at most all of it, with the error of sampling, and on a CPU 15% more, since the rest then finds its
caches as it left them. At least three quarters: every fourth time instead of each.

Source: time is sampled (every 10 ms, outside of windows); libraries by name, see
`perfkit.measures.host.host_work`. From 5% of the mean step on; from 25% where a few long steps have it all, as
at the ends of epochs: what the mean step is longer than the typical one.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms, percent
from perfkit.findings import Finding
from perfkit.measures.results.measured import Measured
from perfkit.rules._host_work import beyond_few_steps, found_in, mean_step, time_of, work_of
from perfkit.rules._step_budget import CRITICAL, NEGLIGIBLE

ID = "logging-in-step"


def check(measured: Measured) -> Iterator[Finding]:
    """Find time in loggers, and the line that logs."""
    whole = mean_step(measured)
    if whole is None:
        return
    cost_ns = time_of(measured, "logging", "logging", whole)
    often_ns = beyond_few_steps(measured, cost_ns)
    if often_ns < NEGLIGIBLE * whole.wall_ns and cost_ns < CRITICAL * whole.wall_ns:
        return
    work = work_of(measured, "logging")
    where = f", most of it in {work.lines[0].function}" if work is not None else ""
    yield found_in(
        measured,
        work,
        cost_ns,
        whole,
        rule=ID,
        message=(
            f"Logging takes {ms(cost_ns)} of the mean step of {ms(whole.wall_ns)} "
            f"({percent(cost_ns, whole.wall_ns)}){where}."
        ),
        advice="Log a quarter as often or less, one line or a few numbers at a time, and let the file stay open.",
    )
