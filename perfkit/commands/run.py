"""``perfkit run``: runs a training script as Python would, with a profile around it and no edit to it."""

from __future__ import annotations

import importlib.util
import os
import runpy
import signal
import sys
import traceback
import types
from pathlib import Path
from typing import Any, Literal

import typer

from perfkit import _env, _import_hook
from perfkit._code_owner import claim
from perfkit._patches import Patches
from perfkit._stderr import print_message
from perfkit.errors import PerfkitError, UsageError
from perfkit.profiler import profile
from perfkit.record.triggers.trigger_settings import DEFAULT
from perfkit.record.windows.schedules import schedule as make_schedule
from perfkit.run.rank_writer import write_record
from perfkit.run.records import AppliedChanges
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
        help="Record windows by wait,warmup,active[,repeat] in steps. Default: 10,2,3,1, earlier in short runs.",
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
        False, "--log-loss", help="Log the loss that each step's first backward() starts from: reading it is a sync."
    ),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace an existing run in the folder."),
    quiet: bool = typer.Option(False, "--quiet", help="Print no verdict."),
) -> int:
    """Run a training script unchanged, record it, and report why it is slow.

    The verdict goes to stderr; the script's own output and exit code do not change.
    """
    target = _find(script, module)
    if syncs not in ("auto", "dry", "cuda", "off"):
        raise UsageError(f"--syncs must be auto, dry, cuda or off, got {syncs!r}")
    prof = profile(
        out,
        schedule=parse_schedule(schedule),
        detect_syncs=None if syncs == "off" else _detect_mode(syncs),
        capture_nvtx=nvtx,
        triggers=_parse_triggers(trigger),
        with_stack=with_stack,
        record_shapes=record_shapes,
        overwrite=overwrite,
        stop_after=stop_after,
        quiet=quiet,
    )
    additions = Additions(changes(*with_) if with_ else None, log_loss)
    return execute(prof, target, script, [*context.args], module, additions)


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


def _find(script: str, module: bool) -> Path:
    """The file that will run. Errors here come before anything is recorded."""
    if module:
        sys.path.insert(0, os.getcwd())  # as python -m does
        try:
            spec = importlib.util.find_spec(script)
            if spec is not None and spec.submodule_search_locations is not None:
                spec = importlib.util.find_spec(f"{script}.__main__")
        except (ImportError, ValueError) as error:
            raise UsageError(f"no module named {script!r} can be run: {error}") from error
        if spec is None or spec.origin is None:
            raise UsageError(f"no module named {script!r} can be run: it is not installed, or has no __main__")
        return Path(spec.origin)
    path = Path(script)
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise UsageError(f"the script {script} {what}: name a Python file, or a module with -m")
    if path.suffix not in (".py", ".pyw", ""):
        raise UsageError(f"the script {script} must be a Python file, its name ends in {path.suffix}")
    return path


class Additions:
    """What happens to the program beside its recording: changes are applied, losses logged."""

    def __init__(self, applied: changes | None = None, log_loss: bool = False) -> None:
        self._applied = applied
        self._log_loss = log_loss
        self._losses: Patches | None = None

    def start(self, prof: profile) -> None:
        """Apply the changes, once torch is imported, and start the profile.

        Raises:
            SystemExit: a change cannot be applied; the program would not be the one that was asked for.
        """
        if self._applied is not None:
            try:
                self._applied.__enter__()
            except Exception as error:  # noqa: BLE001 - else it would be another program than was asked for
                print_message(str(error) if isinstance(error, UsageError) else f"a change cannot be applied: {error!r}")
                raise SystemExit(2) from None
        start(prof)
        if self._log_loss:
            from perfkit.record.hooks.losses import log_losses  # imports torch

            self._losses = log_losses(prof)

    def stop(self, prof: profile) -> None:
        """Undo the changes, and write what became of them into the run folder; the program has ended by now."""
        try:
            self._stop(prof)
        except Exception as error:  # noqa: BLE001 - the program's own exit code must be returned
            print_message(f"writing what became of the changes: {type(error).__name__}: {error}")

    def _stop(self, prof: profile) -> None:
        if self._losses is not None:
            self._losses.undo()
        if self._applied is None:
            return
        self._applied.__exit__(None, None, None)
        if prof.folder is not None and (rank := prof.folder / f"rank-{_env.rank()}").is_dir():
            write_record(rank, AppliedChanges(changes=self._applied.report()))
        for one in self._applied.report():
            if not one.count:
                print_message(f"the change {one.change} had no effect: the program made nothing that it applies to")


def execute(
    prof: profile,
    target: Path,
    script: str,
    arguments: list[str],
    module: bool = False,
    additions: Additions | None = None,
) -> int:
    """Run the program with ``prof`` around it and return its exit code.

    The profile attaches when the program imports torch, so that environment variables which the program sets before
    that import still take effect.
    """
    claim(str(target.parent if module and target.parent != Path() else target))
    sys.argv = [str(target) if module else script, *arguments]
    prof.started_by = "perfkit run"
    additions = additions or Additions()
    cancel = _import_hook.when_imported("torch", lambda: additions.start(prof)) if not _env.disabled() else lambda: None
    error: BaseException | None = None
    code: int = 0
    try:
        if module:
            runpy.run_module(script, run_name="__main__", alter_sys=True)
        else:
            _run_file(script)
    except SystemExit as exit_:
        error = exit_
        code = _exit_code(exit_.code)
    except BaseException as raised:  # noqa: BLE001 - the script's own error is shown as Python would, below
        error = raised
        code = 130 if isinstance(raised, KeyboardInterrupt) else 1
        _show(raised)
    cancel()
    # While the verdict is computed, a second Ctrl-C must still end the program at once.
    prof.stop(error)
    additions.stop(prof)
    if prof.folder is None and not _env.disabled():
        how = "imported torch where perfkit does not see it" if "torch" in sys.modules else "never imported torch"
        print_message(f"{script} {how}; nothing was recorded")
    if isinstance(error, KeyboardInterrupt):
        # Die of the signal, as the program would have, so that a shell loop around it stops too.
        sys.stderr.flush()
        sys.stdout.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return code


def start(prof: profile) -> None:
    """Start the profile once torch is imported; where that fails, report it and let the program run without."""
    try:
        prof.start()
    except PerfkitError as error:
        print_message(f"{error}; the program continues without being recorded")


def _run_file(script: str) -> None:
    """Run a file as ``__main__`` and leave that module in place, because workers and pickles need its names."""
    # Absolute, as Python makes it: the program may change its folder, and its source is read later.
    script = os.path.abspath(script)
    sys.path[0] = os.path.dirname(script)
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=script, __builtins__=__builtins__, __cached__=None)
    sys.modules["__main__"] = main
    with open(script, "rb") as file:
        code = compile(file.read(), script, "exec")
    exec(code, main.__dict__)


def _exit_code(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code
    print(code, file=sys.stderr)
    return 1


def _show(error: BaseException) -> None:
    """Print the traceback that Python would have printed: without the frames that ran the script."""
    trace = error.__traceback__
    own = (__file__, runpy.__file__, "<frozen runpy>")
    while trace is not None and trace.tb_frame.f_code.co_filename in own:
        trace = trace.tb_next
    shown = error.with_traceback(trace)
    if sys.excepthook is sys.__excepthook__:
        traceback.print_exception(type(shown), shown, trace)
    else:
        sys.excepthook(type(shown), shown, trace)
