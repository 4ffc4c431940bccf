"""Runs a training script as Python would, with a profile around it and no edit to it."""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys
import traceback
import types
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfkit import _env, _import_hook
from perfkit._code_owner import claim
from perfkit._patches import Patches
from perfkit._stderr import print_message
from perfkit.errors import Interrupted, PerfkitError, UsageError
from perfkit.profiler import profile
from perfkit.record.hooks.loop_rounds import with_counted_loops
from perfkit.run.rank_writer import write_record
from perfkit.run.records import AppliedChanges
from perfkit.spawned_ranks import record_spawned_ranks

if TYPE_CHECKING:
    from perfkit.trial.applied import changes


def find(script: str, module: bool) -> Path:
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
    """What happens to the program beside its recording: changes are applied, losses logged, its own ranks recorded.

    ``arguments`` of `perfkit.profile` are those with which ranks record that the program starts; None: none do.
    """

    def __init__(
        self,
        applied: Iterable[changes] = (),
        log_loss: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        self._applied = tuple(applied)
        self._log_loss = log_loss
        self._arguments = arguments
        #: The file that runs, which is the user's code.
        self.script = ""
        self._patches: list[Patches] = []
        #: Whether ranks that the program has started took over: they report what the changes did, and not this process.
        self._handed_over = False

    def start(self, prof: profile) -> None:
        """Apply the changes, once torch is imported, and start the profile.

        Raises:
            SystemExit: a change cannot be applied; the program would not be the one that was asked for.
        """
        for applied in self._applied:
            try:
                applied.__enter__()
            except Exception as error:  # else it would be another program than was asked for
                print_message(str(error) if isinstance(error, UsageError) else f"a change cannot be applied: {error!r}")
                raise SystemExit(2) from error
        start(prof)
        if self._log_loss:
            from perfkit.record.hooks.losses import log_losses  # imports torch

            self._patches.append(log_losses(prof))
        if self._arguments is not None:
            self._patches.append(record_spawned_ranks(prof, self._arguments, self.script, self._for_rank))

    def _for_rank(self) -> Additions:
        """What each rank that the program starts runs beside its recording: the same changes and log of losses."""
        self._handed_over = True
        return Additions(self._applied, self._log_loss)

    def stop(self, prof: profile, error: BaseException | None) -> None:
        """Undo the changes, and write what became of them into the run folder; ``error`` ended the program, if any."""
        try:
            self._stop(prof)
        except Exception as trouble:  # noqa: BLE001 - the program's own exit code must be returned
            print_message(f"writing what became of the changes: {type(trouble).__name__}: {trouble}")

    def _stop(self, prof: profile) -> None:
        for patches in self._patches:
            patches.undo()
        if not self._applied:
            return
        for applied in reversed(self._applied):
            applied.__exit__(None, None, None)
        if self._handed_over:
            return
        report = tuple(one for applied in self._applied for one in applied.report())
        if prof.folder is not None and (rank := prof.folder / f"rank-{_env.rank()}").is_dir():
            write_record(rank, AppliedChanges(changes=report))
        for one in report:
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

    Raises:
        Interrupted: Ctrl-C ended the program.
    """
    claim(str(target.parent if module and target.parent != Path() else target))
    sys.argv = [str(target) if module else script, *arguments]
    prof.started_by = "perfkit run"
    additions = additions or Additions()
    additions.script = str(target)
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
        code = 1
        _show(raised)
    cancel()
    try:
        _stop(prof, additions, script, error)
    except KeyboardInterrupt:
        # The program is over, and its outcome stands; only the verdict is left out.
        print_message("the verdict was interrupted; `perfkit diagnose` prints it")
    if isinstance(error, KeyboardInterrupt):
        raise Interrupted
    return code


def _stop(prof: profile, additions: Additions, script: str, error: BaseException | None) -> None:
    prof.stop(error)
    additions.stop(prof, error)
    if prof.folder is None and not prof.off and not _env.disabled():
        how = "imported torch where perfkit does not see it" if "torch" in sys.modules else "never imported torch"
        print_message(f"{script} {how}; nothing was recorded")


def start(prof: profile) -> None:
    """Start the profile once torch is imported; where that fails, report it and let the program run without."""
    try:
        prof.start()
    except PerfkitError as error:
        prof.off = True
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
        source = file.read()
    # As its loader compiles a module: without this module's __future__ imports.
    compiled = SourceFileLoader("__main__", script).source_to_code
    code = None
    if not _env.disabled():
        with suppress(SyntaxError, RecursionError, ValueError):  # compiling the text says what is wrong
            tree, loops = with_counted_loops(source, script)
            code = compiled(tree, script)
            main.__dict__.update(loops)
    exec(code or compiled(source, script), main.__dict__)


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
        return
    try:
        sys.excepthook(type(shown), shown, trace)
    except BaseException as failed:
        if isinstance(failed, SystemExit):
            raise
        print("Error in sys.excepthook:", file=sys.stderr)
        if failed.__context__ is error:
            failed.__context__ = None  # it is being handled here alone
        inner = failed.__traceback__
        traceback.print_exception(failed.with_traceback(inner.tb_next if inner is not None else None))
        print("\nOriginal exception was:", file=sys.stderr)
        traceback.print_exception(type(shown), shown, trace)
