"""``try_changes``: runs a program again with changes applied, and reports what each saves."""

from __future__ import annotations

import functools
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from perfkit._format import share_of, shown_speedup
from perfkit.diagnosis import diagnose
from perfkit.errors import UsageError, check_whole_number
from perfkit.run.atomic import write_atomically
from perfkit.run.folder_claim import RUNS
from perfkit.run.reading import is_run_folder, read_run
from perfkit.run.records import ChangedLine, Trial, TriedChange
from perfkit.run.run_list import runs_by_start, start_unix_s
from perfkit.trial.advice import advice_of
from perfkit.trial.catalog import parse_changes
from perfkit.trial.patches.edits import TrainerKind
from perfkit.trial.patches.patch import write_patch
from perfkit.trial.patches.trainers import kinds_of, library_of, write_config
from perfkit.trial.reruns import RerunPlan, TriedProgram, check_baseline, start_rerun

#: Steps of a rerun where nothing else is asked for: 35 after the warm-up, in turns of three, are eleven pairs of turns.
DEFAULT_STEPS = 40
#: Time that the run which is diagnosed may take, as a share of the budget.
_DIAGNOSED = 0.4
#: What the diagnosed run needs: warm-up, a window, and enough ordinary steps to say what one takes.
_DIAGNOSED_STEPS = 60

if TYPE_CHECKING:
    from perfkit.trial.search import Found

Progress = Callable[[str, float], None]


def try_changes(
    command: Sequence[str],
    *,
    changes: str | Sequence[str] = "advised",
    budget_s: float = 300.0,
    steps: int = DEFAULT_STEPS,
    run: str | Path | None = None,
    allow_writes: Sequence[str] = (),
    progress: Progress = lambda what, left_s: None,
) -> Trial:
    """Run a program again with changes applied, and measure what each saves.

        trial = perfkit.try_changes(["train.py", "--epochs", "3"], budget_s=120)
        print(trial.verdict, trial.patch)

    Each rerun is a process of its own that stops after ``steps`` steps and writes only into a temporary folder. The
    unchanged program and the changed one run in turns; below what two unchanged runs differ by, nothing is claimed.
    The result is also written to ``trial.json`` in the run's folder, and its patch to ``trial.patch``.

    Args:
        command: The program with its arguments: ``["train.py", "--epochs", "3"]``, ``["-m", "package.train"]``, or
            with a launcher in front, ``["torchrun", "--nproc-per-node", "2", "train.py"]``.
        changes: "advised" for those that answer what the diagnosis finds, "all", or names: ``["tf32", "workers=2,4"]``.
        budget_s: Seconds for all of it; a comparison that has begun is ended at its end.
        steps: Steps of each rerun; more where they are short.
        run: The run folder whose advice is tried. Default: the newest one in ``runs/`` that recorded this command
            after its script was written, else a new one.
        allow_writes: Folders in which the reruns may write too.
        progress: Called with what is tried now, and the seconds that are left.

    Raises:
        UsageError: the command has no script, or no change has such a name.
        CannotTry: the program takes no steps, ends too early, asks for input, writes where it must not, or fails.
    """
    # Both load numpy, which `perfkit run`, for which this file is imported too, must leave to the program.
    from perfkit.trial.comparing import Comparer
    from perfkit.trial.search import Search

    if budget_s <= 0:
        raise UsageError(f"budget_s must be positive, got {budget_s}")
    check_whole_number("steps", steps, minimum=20)
    program = parse_command(command, allow_writes)
    if changes not in ("advised", "all"):
        parse_changes([changes] if isinstance(changes, str) else changes)  # before anything runs
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="perfkit-try-") as folder:
        workspace = Path(folder)
        source = Path(run) if run is not None else newest_run(command, program)
        if source is None:
            progress("the program, to diagnose it", budget_s)
            source = _record(program, workspace, limit_s=budget_s * _DIAGNOSED)
        diagnosis = diagnose(source)
        rank = read_run(source).ranks[0].rank if is_run_folder(source) else None
        advice = advice_of(diagnosis, changes, rank)
        step_s = diagnosis.step.wall_ns / 1e9 if diagnosis.step is not None else None
        comparer = Comparer(program, workspace, steps=steps, progress=lambda what, elapsed_s: None, step_s=step_s)
        left_s = max(1.0, budget_s - (time.monotonic() - began))
        seeds = functools.partial(_losses_of_other_seeds, program, workspace, steps)
        search = Search(comparer, advice.candidates, other_seeds=seeds, budget_s=left_s, progress=progress)
        found = search.run()
    trial = _result(program, command, found, advice.settled, time.monotonic() - began)
    if is_run_folder(source):
        trial = msgspec.structs.replace(trial, folder=str(source))
        _keep(trial, source)
    return trial


def parse_command(command: Sequence[str], allow_writes: Sequence[str] = ()) -> TriedProgram:
    """Split a command into launcher, script and arguments.

    ``allow_writes`` are folders in which it may write.

    Raises:
        UsageError: it names no script.
    """
    words = list(command)
    at = next((at for at, word in enumerate(words) if word == "-m" or word.endswith((".py", ".pyw"))), None)
    module = at is not None and words[at] == "-m"
    if at is None or (module and at + 1 >= len(words)):
        raise UsageError(
            f"the command must name a Python script or -m and a module, got {shlex.join(words)!r}: "
            "write perfkit try train.py, or perfkit try torchrun --nproc-per-node 2 train.py"
        )
    script = at + 1 if module else at
    if not module and not Path(words[script]).is_file():
        raise UsageError(f"the script {words[script]} does not exist: name a Python file, or a module with -m")
    launcher = words[:at]
    if len(launcher) == 1 and Path(launcher[0]).name.startswith("python"):
        launcher = []  # reruns have an interpreter: this one
    return TriedProgram(
        script=words[script],
        arguments=tuple(words[script + 1 :]),
        module=module,
        launcher=tuple(launcher),
        writable=tuple(allow_writes),
    )


def newest_run(command: Sequence[str], program: TriedProgram) -> Path | None:
    """The newest complete run in ``runs/`` of this command whose script has not changed since; None: there is none."""
    changed = Path(program.script).stat().st_mtime if not program.module else 0.0
    wanted = (program.script, *program.arguments)
    for folder in reversed(runs_by_start()):
        if (folder / "diagnosis.json").is_file() and start_unix_s(folder) > changed:
            recorded = read_run(folder).run
            if recorded is not None and recorded.command == wanted:
                return folder
    return None


def _record(program: TriedProgram, workspace: Path, *, limit_s: float) -> Path:
    """Record a run of the program as `perfkit run` does, and keep its folder."""
    with start_rerun(program, RerunPlan(steps=_DIAGNOSED_STEPS, record=True), workspace) as rerun:
        result = rerun.wait(limit_s)
    check_baseline(result)
    folder = new_run_folder(program)
    shutil.move(result.folder, folder)
    return folder


def new_run_folder(program: TriedProgram) -> Path:
    """The path of a new run of this program in ``runs/``, which exists afterwards."""
    name = Path(program.script).stem if not program.module else program.script.rpartition(".")[2]
    RUNS.mkdir(exist_ok=True)
    return RUNS / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"


def _losses_of_other_seeds(
    program: TriedProgram, workspace: Path, steps: int, limit_s: float
) -> list[tuple[float | None, ...]]:
    """The losses of two runs of the unchanged program that differ from it and from each other in their seeds."""
    found = []
    for offset in (1, 2):
        with start_rerun(program, RerunPlan(steps=steps, seed_offset=offset), workspace) as rerun:
            found.append(rerun.wait(limit_s / 2).losses)
    return found


def _result(
    program: TriedProgram, command: Sequence[str], found: Found, settled: Sequence[TriedChange], seconds: float
) -> Trial:
    by_name = {one.name: one for one in found.tried}
    places = [(chosen, by_name[str(chosen)].places) for chosen in found.winners]
    patch = write_patch(places, Path.cwd(), None if program.module else Path(program.script))
    kind = _trainer_of([place for _, each in places for place in each])
    return Trial(
        program=shlex.join(command),
        verdict=_verdict(found),
        floor=found.floor,
        step_ns=found.step_ns,
        changes=(*found.tried, *settled),
        together=found.together,
        patch=patch.diff,
        config=write_config(found.winners, kind) if kind is not None else "",
        unpatched=tuple(f"{change}: {reason}" for change, reason in patch.left),
        notes=tuple(found.notes),
        seconds=seconds,
    )


def _trainer_of(places: Iterable[ChangedLine]) -> TrainerKind | None:
    """The kind of Trainer through which a change took effect; None where there was none."""
    libraries = filter(None, map(library_of, places))
    return next((kind for library in libraries for kind in kinds_of(library)), None)


def _verdict(found: Found) -> str:
    together = found.together
    if together is None or together.outcome != "faster" or together.saving is None or together.ci is None:
        return _without_claim(found)
    loss = f", {together.loss.sentence}" if together.loss is not None else ""
    speedup = shown_speedup(together.saving, together.ci)
    return f"{speedup}{loss}, with {', '.join(together.names)}."


def _without_claim(found: Found) -> str:
    """The verdict where no saving is certain: it agrees with the rows, some of which may have one."""
    tried = [one for one in found.tried if one.kind != "bound"]
    if any(one.outcome == "not-tried" for one in tried) and all(one.saving is None for one in tried):
        return "No change was measured: give a larger --budget."
    for one in tried:
        if one.outcome == "faster" and one.loss is not None and one.loss.outcome == "differs":
            return f"{one.name} {one.sentence}, but {one.loss.sentence}."
    faster = max((one for one in tried if one.outcome == "faster"), key=lambda one: one.saving or 0.0, default=None)
    if faster is not None:
        own = f": {found.together.sentence}" if found.together is not None and found.together.sentence else ""
        return f"{faster.name} {faster.sentence} within one process; in processes of its own that is not certain{own}."
    likely = [one for one in tried if one.outcome == "undecided" and (one.saving or 0.0) > found.floor]
    if likely:
        best = max(likely, key=lambda one: one.saving or 0.0)
        return f"No saving is certain yet. The largest that was measured is that of {best.name}: {best.sentence}."
    least = f"{share_of(found.floor)} of a step, what two unchanged runs differ by"
    return f"No change that was tried saves more than {least}."


def _keep(trial: Trial, folder: Path) -> None:
    """Write the result into the run's folder."""
    write_atomically(folder / "trial.json", trial.to_json().encode())
    if trial.patch:
        write_atomically(folder / "trial.patch", trial.patch.encode())
