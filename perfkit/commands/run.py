"""``perfkit run``: runs a training script as Python would, with a profile around it and no edit to it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import click

from perfkit import commands
from perfkit.errors import UsageError
from perfkit.profiler import profile
from perfkit.record.triggers.trigger_settings import DEFAULT
from perfkit.record.windows.schedules import schedule as make_schedule
from perfkit.script import Additions, execute, find

if TYPE_CHECKING:
    from perfkit.trial.applied import changes


# What follows SCRIPT belongs to it, options too.
@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("script")
@click.argument("args", nargs=-1)
@click.option("-m", "module", is_flag=True, help="Run SCRIPT as a module, as python -m does.")
@click.option("--out", help="Write the run to this folder. Default: runs/<script>-<date>-<time>.")
@click.option("--stop-after", metavar="N", type=click.IntRange(min=1), help="Stop the program cleanly after N steps.")
@click.option(
    "--schedule",
    help="Record windows by wait,warmup,active[,repeat] in steps. Default: 10,2,3,1, earlier in short runs and where "
    "steps are long.",
)
@click.option(
    "--syncs",
    default="off",
    show_default=True,
    help="Find host-device syncs: auto (every step on a GPU, two dry steps on a CPU), dry, cuda or off.",
)
@click.option("--nvtx", is_flag=True, help="Also record ranges that the script makes through nvtx or torch.cuda.nvtx.")
@click.option(
    "--trigger",
    multiple=True,
    help="Open a window on an event: slow-step[=3], recompile, signal[=SIGUSR2], out-of-memory; or keep the state "
    "at an exception. May be repeated. file, which perfkit trigger uses, is always on; none switches all off.",
)
@click.option(
    "--memory",
    is_flag=True,
    help="Record what holds memory at the peak of a step: by kind, module, op and line. Five steps after the first "
    "window are slower for it.",
)
@click.option("--with-stack", is_flag=True, help="Record Python stacks in windows (expensive).")
@click.option("--record-shapes", is_flag=True, help="Record input shapes in windows.")
@click.option(
    "--with",
    "with_",
    metavar="CHANGE",
    multiple=True,
    help="Apply a change without an edit: workers=4, fused-optimizer, tf32 ... May be repeated. "
    "perfkit explain changes lists them.",
)
@click.option(
    "--log-loss",
    is_flag=True,
    help="Log the loss that each step's first backward() starts from; on a device other than CUDA a sync.",
)
@click.option("--overwrite", is_flag=True, help="Replace an existing run in the folder.")
@click.option("--quiet", is_flag=True, help="Print no verdict.")
def run(
    script: str,
    args: tuple[str, ...],
    module: bool,
    out: str | None,
    stop_after: int | None,
    schedule: str | None,
    syncs: str,
    nvtx: bool,
    trigger: tuple[str, ...],
    memory: bool,
    with_stack: bool,
    record_shapes: bool,
    with_: tuple[str, ...],
    log_loss: bool,
    overwrite: bool,
    quiet: bool,
) -> Callable[[], int]:
    """Run a training script unchanged, record it, and report why it is slow.

    The verdict goes to stderr; the script's own output and exit code do not change.

    SCRIPT: Run this training script with the arguments after it.
    """
    if script.startswith("-"):
        raise UsageError(f"perfkit run has no option {script}; its options come before the script: perfkit run --help")
    target = find(script, module)
    if syncs not in ("auto", "dry", "cuda", "off"):
        raise UsageError(f"--syncs must be auto, dry, cuda or off, got {syncs!r}")
    arguments: dict[str, Any] = {
        "schedule": parse_schedule(schedule),
        "detect_syncs": None if syncs == "off" else _detect_mode(syncs),
        "capture_nvtx": nvtx,
        "memory": memory,
        "triggers": _parse_triggers(trigger),
        "with_stack": with_stack,
        "record_shapes": record_shapes,
        "overwrite": overwrite,
        "stop_after": stop_after,
        "quiet": quiet,
    }
    prof = profile(out, **arguments)
    prof.loading_ns = time.process_time_ns() - commands.BEGAN_NS
    additions = Additions(_changes(with_), log_loss, arguments)
    # Called by `perfkit.commands.main`.
    return partial(execute, prof, target, script, [*args], module, additions)


def _changes(names: Sequence[str]) -> list[changes]:
    """The changes of --with, whose environment variables take effect here."""
    if not names:
        return []
    # The catalogue of changes is as large as all else that a run loads at its start, and few runs change anything.
    from perfkit.trial.applied import changes
    from perfkit.trial.catalog import environment_of, parse_changes

    os.environ.update(environment_of(parse_changes(names), os.environ))
    return [changes(*names)]


def _detect_mode(word: str) -> Literal["auto", "cuda", "dry"]:
    return word  # type: ignore[return-value]  # checked against the closed list by the caller


def parse_schedule(text: str | None) -> Any:
    if text is None:
        return None
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) not in (3, 4):
        raise UsageError(f"--schedule takes wait,warmup,active[,repeat], as in 10,2,3,1; got {text!r}")
    return make_schedule(
        wait=numbers[0], warmup=numbers[1], active=numbers[2], repeat=numbers[3] if len(numbers) == 4 else 1
    )


def _parse_triggers(words: tuple[str, ...]) -> Any:
    """The triggers of --trigger, added to the defaults, which cost nothing; ``none`` switches all off."""
    if words == ("none",):
        return ()
    return dict.fromkeys([*DEFAULT, *words]) if words else None
