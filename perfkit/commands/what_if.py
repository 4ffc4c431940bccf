"""``perfkit what-if``: what a step would take without a problem."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from rich.text import Text

from perfkit._format import shown_path
from perfkit.commands._progress import reading_bar
from perfkit.commands._recordings import recording_or_newest
from perfkit.errors import UsageError, check_whole_number
from perfkit.replay.results import WhatIf, sentences, tables
from perfkit.replay.what_if import what_if as answer_what_if
from perfkit.reports.console import print_line, print_table, print_text, stdout_console
from perfkit.reports.json import write_json


@click.command
@click.argument("recorded", required=False, metavar="[PATH]")
@click.option("--hide-loader", is_flag=True, help="Prepare the batches in background processes, as many as keep up.")
@click.option("--workers", metavar="W", type=int, help="Prepare the batches in W background processes.")
@click.option(
    "--without",
    metavar="WHAT",
    multiple=True,
    help="Take out: sync (waits for the device), copy-waits (copies become asynchronous), launch-overhead (CUDA "
    "graphs), exposed-communication (collectives overlap) or rank-waits (all ranks arrive together). May be "
    "repeated.",
)
@click.option(
    "--scale",
    metavar="PATTERN=X",
    multiple=True,
    help="Let ops, kernels, ranges or modules take X times their time, as in 'aten::addmm=0.5'; * stands for any "
    "text. May be repeated.",
)
@click.option(
    "--fuse",
    metavar="PATTERN",
    multiple=True,
    help="Fuse the small ops of each range or module that matches, or matching ops in a row. May be repeated.",
)
@click.option("--bandwidth", metavar="F", type=float, help="Let collectives transfer F times as fast.")
@click.option(
    "--against", metavar="PATH", help="Compare the prediction with this recording, in which the change was made."
)
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
def what_if(
    recorded: str | None,
    hide_loader: bool,
    workers: int | None,
    without: tuple[str, ...],
    scale: tuple[str, ...],
    fuse: tuple[str, ...],
    bandwidth: float | None,
    against: str | None,
    as_json: bool,
) -> int:
    """Replay the step with changes: what it would take, and what it would wait for next.

    Without changes, report the critical path of the step and what each change alone would save.

    PATH: Replay this run folder (its newest window), Kineto trace (.json, .json.gz) or nsys report. Default: the run in
    runs/ that started last.
    """
    if workers is not None:
        check_whole_number("--workers", workers, minimum=1)
    path = recording_or_newest(recorded)
    factors = dict(_factor(word) for word in scale)
    with reading_bar(f"reading {Path(path).name}") as report:
        answer = answer_what_if(
            path,
            hide_loader=hide_loader if workers is None else workers,
            without=without,
            scale=factors,
            fuse=fuse,
            bandwidth=bandwidth,
            against=against,
            progress=report,
        )
    if as_json:
        write_json(answer, sys.stdout)
    else:
        _print(answer)
    return 0


def _factor(word: str) -> tuple[str, float]:
    # A pattern may hold "=": the factor is behind the last one.
    pattern, _, number = word.rpartition("=")
    try:
        if pattern:
            return pattern, float(number)
    except ValueError:
        pass
    raise UsageError(f"--scale takes PATTERN=X ('aten::addmm=0.5'), got {word!r}")


def _print(answer: WhatIf) -> None:
    console = stdout_console()
    of = f"{answer.steps} steps" if answer.per == "step" else "the whole recording"
    print_line(Text(f"{shown_path(answer.source)} · replay of {of}", style="dim"), console)
    for number, sentence in enumerate(sentences(answer)):
        print_text(Text(sentence, style="bold" if number == 0 else ""), console)
    for table in tables(answer):
        console.print()
        print_table(table, console)
    for number, note in enumerate(answer.notes):
        if number == 0:
            console.print()
        print_text(Text(f"Note: {note}", style="dim"), console)
