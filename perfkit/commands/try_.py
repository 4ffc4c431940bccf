"""``perfkit try``: runs a training script again with changes applied, and measures what each saves."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.text import Text

from perfkit._stderr import print_message
from perfkit._text import printable
from perfkit.errors import UsageError
from perfkit.reports.console import stderr_console, stdout_console
from perfkit.reports.json import write_json
from perfkit.reports.sweep import print_sweep
from perfkit.reports.trial import print_trial
from perfkit.trial.sweep import parse_sweep, sweep_program
from perfkit.trial.trying import DEFAULT_STEPS, newest_run, parse_command, try_changes

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(s|m|h)?")
_SECONDS = {"s": 1, None: 1, "m": 60, "h": 3600}


# What follows SCRIPT belongs to it, options too.
@click.command("try", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("script")
@click.argument("args", nargs=-1)
@click.option("-m", "module", is_flag=True, help="Run SCRIPT as a module, as python -m does.")
@click.option(
    "--only",
    metavar="CHANGE[,CHANGE]",
    multiple=True,
    help="Try these changes, as in tf32,workers=0,2,4. perfkit explain changes lists them. May be repeated. "
    "Default: those that answer what the diagnosis finds.",
)
@click.option("--all", "every", is_flag=True, help="Try every change of the catalogue.")
@click.option("--budget", default="5m", show_default=True, help="Take at most this long, as in 90s, 5m or 1h.")
@click.option(
    "--steps",
    type=click.IntRange(min=20),
    default=DEFAULT_STEPS,
    show_default=True,
    help="Stop each rerun after N steps; more where they are short.",
)
@click.option(
    "--run",
    metavar="FOLDER",
    help="Try the advice on this run. Default: the newest run of the command in runs/, else a new one.",
)
@click.option(
    "--sweep",
    metavar="batch-size|workers[=N,N]",
    help="Compare batch sizes or numbers of workers by throughput and memory, each in a process of its own. "
    "Default sizes: the program's own, doubled until that is no faster, and one half.",
)
@click.option(
    "--allow-writes",
    metavar="FOLDER",
    multiple=True,
    help="Let the reruns write into this folder too. May be repeated.",
)
@click.option("--emit", metavar="patch|config", help="Print only the patch, or the Trainer's arguments.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def try_(
    script: str,
    args: tuple[str, ...],
    module: bool,
    only: tuple[str, ...],
    every: bool,
    budget: str,
    steps: int,
    run: str | None,
    sweep: str | None,
    allow_writes: tuple[str, ...],
    emit: str | None,
    as_json: bool,
) -> int:
    """Apply what the diagnosis advises, one change at a time, and measure what each saves.

    Nothing of yours is changed: every rerun stops after some steps and writes into a temporary folder. The result is
    kept in the run's folder as trial.json, and as trial.patch where a patch can be written.

    SCRIPT: Try this training script with the arguments after it; a launcher may stand in front.
    """
    if only and every:
        raise UsageError("choose one of --only and --all")
    if emit not in (None, "patch", "config"):
        raise UsageError(f"--emit must be patch or config, got {emit!r}")
    if as_json and emit is not None:
        raise UsageError("choose one of --json and --emit")
    command = [*(["-m"] if module else []), script, *args]
    if sweep is not None:
        if only or every or emit is not None:
            raise UsageError("--sweep compares values of one setting: leave out --only, --all and --emit")
        program = parse_command(command, allow_writes)
        folder = Path(run) if run is not None else newest_run(command, program)
        with _progress() as report:
            swept = sweep_program(
                program,
                parse_sweep(sweep),
                folder=folder,
                steps=steps,
                budget_s=parse_duration(budget),
                progress=report,
            )
        if as_json:
            write_json(swept, sys.stdout)
        else:
            print_sweep(swept, stdout_console())
        return 0
    with _progress() as report:
        trial = try_changes(
            command,
            changes="all" if every else only or "advised",
            budget_s=parse_duration(budget),
            steps=steps,
            run=run,
            allow_writes=allow_writes,
            progress=report,
        )
    if as_json:
        write_json(trial, sys.stdout)
    elif emit == "patch":
        sys.stdout.write(trial.patch)
    elif emit == "config":
        if not trial.config:
            raise UsageError("--emit config needs a change that took effect through a Trainer: use --emit patch")
        sys.stdout.write(trial.config)
    else:
        print_trial(trial, stdout_console())
    return 0


def parse_duration(text: str) -> float:
    """Seconds of ``90``, ``90s``, ``5m`` or ``1h``.

    Raises:
        UsageError: it is none of these, or zero.
    """
    match = _DURATION.fullmatch(text.strip())
    seconds = float(match[1]) * _SECONDS[match[2]] if match else 0.0
    if seconds <= 0:
        raise UsageError(f"--budget must be a positive time, as in 90s, 5m or 1h; got {text!r}")
    return seconds


@contextmanager
def _progress() -> Iterator[Callable[[str, float], None]]:
    """Yield a callback that shows what is tried now: a spinner on a terminal, lines elsewhere."""
    console = stderr_console()
    if not console.is_terminal:
        yield lambda what, left_s: print_message(f"trying {what}")
        return
    with console.status("") as status:
        # As Text: a program's path may have brackets, which rich would read as a style.
        yield lambda what, left_s: status.update(Text(printable(f"trying {what}, at most {left_s:.0f} s left")))
