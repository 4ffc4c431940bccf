"""``perfkit run``: runs a training script as Python would, with a profile around it and no edit to it."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, Literal

import typer

from perfkit import commands
from perfkit.errors import UsageError
from perfkit.profiler import profile
from perfkit.record.triggers.trigger_settings import DEFAULT
from perfkit.record.windows.schedules import schedule as make_schedule
from perfkit.script import Additions, execute, find

if TYPE_CHECKING:
    from perfkit.trial.applied import changes

#: Everything after SCRIPT belongs to the script, options too.
CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}


def run(
    context: typer.Context,
    script: str = typer.Argument(..., help="Run this training script with the arguments after it."),
    module: bool = typer.Option(False, "-m", help="Run SCRIPT as a module, as python -m does."),
    out: str | None = typer.Option(
        None, "--out", help="Write the run to this folder. Default: runs/<script>-<date>-<time>."
    ),
    stop_after: int | None = typer.Option(
        None, "--stop-after", metavar="N", help="Stop the program cleanly after N steps.", min=1
    ),
    schedule: str | None = typer.Option(
        None,
        "--schedule",
        help="Record windows by wait,warmup,active[,repeat] in steps. Default: 10,2,3,1, earlier in short runs and "
        "where steps are long.",
    ),
    syncs: str = typer.Option(
        "off",
        "--syncs",
        help="Find host-device syncs: auto (every step on a GPU, two dry steps on a CPU), dry, cuda or off.",
    ),
    nvtx: bool = typer.Option(
        False, "--nvtx", help="Also record ranges that the script makes through nvtx or torch.cuda.nvtx."
    ),
    trigger: list[str] = typer.Option(
        [],
        "--trigger",
        help="Open a window on an event: slow-step[=3], recompile, signal[=SIGUSR2], out-of-memory; or keep the state "
        "at an exception. May be repeated. file, which perfkit trigger uses, is always on; none switches all off.",
    ),
    memory: bool = typer.Option(
        False,
        "--memory",
        help="Record what holds memory at the peak of a step: by kind, module, op and line. Five steps after the first "
        "window are slower for it.",
    ),
    with_stack: bool = typer.Option(False, "--with-stack", help="Record Python stacks in windows (expensive)."),
    record_shapes: bool = typer.Option(False, "--record-shapes", help="Record input shapes in windows."),
    with_: list[str] = typer.Option(
        [],
        "--with",
        metavar="CHANGE",
        help="Apply a change without an edit: workers=4, fused-optimizer, tf32 ... May be repeated. "
        "perfkit explain changes lists them.",
    ),
    log_loss: bool = typer.Option(
        False,
        "--log-loss",
        help="Log the loss that each step's first backward() starts from; on a device other than CUDA a sync.",
    ),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace an existing run in the folder."),
    quiet: bool = typer.Option(False, "--quiet", help="Print no verdict."),
) -> int:
    """Run a training script unchanged, record it, and report why it is slow.

    The verdict goes to stderr; the script's own output and exit code do not change.
    """
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
    return execute(prof, target, script, [*context.args], module, Additions(_changes(with_), log_loss, arguments))


def _changes(names: list[str]) -> list[changes]:
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


def _parse_triggers(words: list[str]) -> Any:
    """The triggers of --trigger, added to the defaults, which cost nothing; ``none`` switches all off."""
    if words == ["none"]:
        return ()
    return dict.fromkeys([*DEFAULT, *words]) if words else None
