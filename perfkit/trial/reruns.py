"""One rerun of the user's program: started in a folder of its own, waited for, ended with all that it has started.

The program runs as ``python -m perfkit.trial.child PLAN.json``, or under its launcher. What it writes is in the rerun's
folder: ``run`` (the run folder), ``root`` (see `perfkit.trial.work_folder`), ``output.txt``.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Literal

import msgspec

from perfkit.errors import PerfkitError
from perfkit.run.reading import RankFolder, rank_folders
from perfkit.run.records import AppliedChange
from perfkit.trial.catalog import environment_of, parse_changes
from perfkit.trial.processes import PLAN_VARIABLE, end_watched, family_of, send, watch
from perfkit.trial.protection import QUIET_TRACKERS
from perfkit.trial.switchback import Switching
from perfkit.trial.work_folder import WorkFolder

#: How a rerun ended.
#:
#: - "stopped": after the steps that it was to do, or because the caller ended it;
#: - "ended": the program was over before;
#: - "failed": it raised, or was killed;
#: - "out-of-memory": of the device's memory or the machine's;
#: - "timed-out": its time was over before its steps were;
#: - "refused": it would have changed something outside of its own folder, or asked for input.
RerunEnding = Literal["stopped", "ended", "failed", "out-of-memory", "timed-out", "refused"]

#: What a program gets to end by itself after Ctrl-C, before it is killed: its rows are written then.
_GRACE_S = 10.0
#: What a program gets after its last step, or after a refusal, to end by itself.
_END_S = 10.0
#: Time between two looks at a program: short beside a step of a second, and 20 looks cost nothing.
_LOOK_S = 0.05

#: What happened to a program that nobody here killed, and how torchrun reports it of a rank.
_KILLED = "the program was killed, as the system does where the machine's memory is used up"
_RANK_KILLED = "Signal 9 (SIGKILL) received by PID"
#: The longest path for temporary files: multiprocessing adds 32 characters for a socket, whose path may have 103.
_MAX_TEMPORARY = 70
#: Python imports its ``sitecustomize``, which protects the process.
_STARTUP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "startup")

_numbers = itertools.count(1)


class TriedProgram(msgspec.Struct, frozen=True):
    """What the user asked to try.

    Attributes:
        script: A file, or a module's name with ``module``.
        launcher: What starts the ranks, as ``("torchrun", "--nproc-per-node", "2")``.
        writable: Folders in which the program may write, beside its own.
    """

    script: str
    arguments: tuple[str, ...] = ()
    module: bool = False
    launcher: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()


#: The file that a rerun writes when its first step is over, before it stops (`RerunPlan.stops`).
STEPPING = "stepping"


class RerunPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is different in a rerun.

    Attributes:
        changes: As a user writes them: ``workers=2``.
        switch: Further changes, which are switched off and on while the program runs.
        steps: The program is stopped cleanly after them.
        log_loss: Log the loss of each step.
        seed_offset: Added to every seed that the program sets.
        record: Record a window and diagnose the run, as ``perfkit run`` does; else steps alone are recorded.
        stops: The program's process stops itself after the first step (SIGSTOP), and another one continues it.
    """

    changes: tuple[str, ...] = ()
    switch: Switching | None = None
    steps: int = 40
    log_loss: bool = True
    seed_offset: int = 0
    record: bool = False
    stops: bool = False


class RerunTask(msgspec.Struct, frozen=True):
    """plan.json, which the child reads. ``source`` is the user's current folder."""

    program: TriedProgram
    plan: RerunPlan
    source: str


class ProgramEnding(msgspec.Struct, frozen=True):
    """ending-RANK.json, which the child writes: how the program ended on this rank, and its largest resident memory."""

    ending: RerunEnding
    message: str
    peak_bytes: int | None = None


class RerunResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a rerun has recorded.

    Attributes:
        message: How it ended, in one sentence for a person.
        folder: The run folder.
        steps: Timed steps of rank 0.
        losses: By step, of rank 0; None where none was logged.
        applied: What became of the changes on rank 0.
        peak_bytes: The largest resident memory of rank 0, without its workers'; None where it was ended from outside.
        peak_device_bytes: The largest memory of its device.
    """

    ending: RerunEnding
    message: str
    folder: Path
    steps: int
    losses: tuple[float | None, ...]
    applied: tuple[AppliedChange, ...]
    peak_bytes: int | None
    peak_device_bytes: int | None


class CannotTry(PerfkitError):
    """The program cannot be measured: it takes no steps, ends too early, asks for input, or fails."""


def check_baseline(result: RerunResult) -> None:
    """Check that a run of the unchanged program can be measured.

    Raises:
        CannotTry: it cannot; the text says why.
    """
    if result.ending not in ("stopped", "ended"):
        raise CannotTry(f"the unchanged program must run before a change is tried: {result.message}")
    if not result.steps:
        raise CannotTry(
            "the program must take steps, and none was seen: perfkit counts optimizer.step() and batches of a "
            "DataLoader; where there are neither, write `for batch in perfkit.steps(loader)`"
        )


class Rerun:
    """A program that runs; leaving the ``with`` block ends it and all that it has started, and deletes its files."""

    def __init__(
        self, process: subprocess.Popen[bytes], watcher: subprocess.Popen[bytes], folder: Path, task: RerunTask
    ) -> None:
        self.process = process
        self._watcher = watcher
        #: plan.json, output.txt, run/ and root/ are in it.
        self.folder = folder
        self._task = task
        self._ended_by: RerunEnding | None = None

    def __enter__(self) -> Rerun:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()
        # Checkpoints of many reruns could fill the disk; the run folder stays.
        for name in ("root", "tmp"):
            shutil.rmtree(self.folder / name, ignore_errors=True)

    def wait(self, limit_s: float) -> RerunResult:
        """Wait until the program ends, and end it after ``limit_s`` seconds."""
        until = time.monotonic() + limit_s
        while self.process.poll() is None:
            if time.monotonic() >= until:
                self.end("timed-out")
                break
            if self._is_over():
                until = min(until, time.monotonic() + _END_S)
            time.sleep(_LOOK_S)
        return self.result()

    def _is_over(self) -> bool:
        """Whether nothing more is measured: the program was refused, or its main thread has ended."""
        return any(self.folder.glob("ending-*.json"))

    def end(self, ending: RerunEnding = "stopped") -> None:
        """End the program with all that it has started: Ctrl-C first, so that its rows are written."""
        if self.process.poll() is None:
            self._ended_by = ending
            # It may be stopped, where another program has its turn.
            send(family_of(self.process.pid), signal.SIGCONT)
            # Ctrl-C is for the program: workers ignore it, and ranks get it from their launcher.
            send([self.process.pid], signal.SIGINT)
            try:
                self.process.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                send(family_of(self.process.pid)[::-1], signal.SIGKILL)
                self.process.wait()
        end_watched(self._watcher)

    def result(self) -> RerunResult:
        """What has been recorded; a program that still runs is ended."""
        self.end()
        run = self.folder / "run"
        rank = RankFolder(rank_folders(run).get(0, run / "rank-0"), 0)
        timed = [row for row in rank.steps if row.kind == "timed"]
        ending, message = self._ending(len(rank.steps))
        return RerunResult(
            ending=ending,
            message=message,
            folder=run,
            steps=len(timed),
            losses=tuple(row.loss for row in rank.steps),
            applied=rank.changes.changes if rank.changes is not None else (),
            peak_bytes=self._peak_bytes(),
            peak_device_bytes=max(
                (row.memory_peak_bytes for row in rank.steps if row.memory_peak_bytes is not None), default=None
            ),
        )

    def _peak_bytes(self) -> int | None:
        file = self.folder / "ending-0.json"
        return msgspec.json.decode(file.read_bytes(), type=ProgramEnding).peak_bytes if file.is_file() else None

    def _ending(self, steps: int) -> tuple[RerunEnding, str]:
        wanted, code = self._task.plan.steps, self.process.returncode
        written = self._written()
        # What happened first is the cause: the other ranks end because of it.
        for each in sorted(written, key=lambda each: each.ending != "refused"):
            if each.ending != "ended":
                killed = each.ending == "failed" and _RANK_KILLED in self._output()
                return ("out-of-memory", _KILLED) if killed else (each.ending, each.message)
        if steps >= wanted:
            return "stopped", f"the program was stopped after {steps} steps"
        if (self.folder / "ending-0.json").exists():
            return "ended", f"the program was over after {steps} of {wanted} steps"
        if self._ended_by == "timed-out":
            return "timed-out", f"the program had done {steps} of {wanted} steps when its time was over"
        if self._ended_by is not None:
            return self._ended_by, f"the program was ended after {steps} steps"
        if code == 0:
            return "ended", f"the program was over after {steps} of {wanted} steps"
        if code == -signal.SIGKILL or _RANK_KILLED in self._output():
            return "out-of-memory", _KILLED
        if code < 0:
            return "failed", f"the program was ended by {signal.Signals(-code).name}"
        lines = (line.strip() for line in reversed(self._output().splitlines()))
        return "failed", next(filter(None, lines), f"the program ended with exit code {code}")

    def _written(self) -> list[ProgramEnding]:
        """What the ranks have written about their endings, the first one first."""
        files = sorted(self.folder.glob("ending-*.json"), key=lambda file: file.stat().st_mtime_ns)
        return [msgspec.json.decode(file.read_bytes(), type=ProgramEnding) for file in files]

    def _output(self) -> str:
        return (self.folder / "output.txt").read_text(encoding="utf-8", errors="replace")


def start_rerun(program: TriedProgram, plan: RerunPlan, workspace: Path) -> Rerun:
    """Start the program once more, in a new folder of the workspace.

    Raises:
        OSError: the program's launcher cannot be started.
    """
    folder = workspace.resolve() / f"rerun-{next(_numbers)}"
    folder.mkdir(parents=True)
    shown = WorkFolder(Path.cwd(), folder / "root")
    shown.make()
    if not program.module and os.path.isabs(program.script):
        program = msgspec.structs.replace(program, script=f"{shown.root}{program.script}")
    writable = tuple(os.path.abspath(path) for path in program.writable)
    task = RerunTask(msgspec.structs.replace(program, writable=writable), plan, str(shown.source))
    (folder / "plan.json").write_bytes(msgspec.json.encode(task))
    command = [*(program.launcher or (sys.executable,)), "-m", "perfkit.trial.child", str(folder / "plan.json")]
    watcher = watch(folder / "plan.json")
    try:
        with (folder / "output.txt").open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=shown.work,
                env=_environment(folder, plan),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except OSError:
        end_watched(watcher)
        raise
    return Rerun(process, watcher, folder, task)


def _environment(folder: Path, plan: RerunPlan) -> dict[str, str]:
    """The environment of a rerun: protected, quiet, and as like that of another rerun as can be."""
    environment = (
        os.environ
        | QUIET_TRACKERS
        | {
            PLAN_VARIABLE: str(folder / "plan.json"),
            "PYTHONPATH": os.pathsep.join((_STARTUP, *filter(None, (os.environ.get("PYTHONPATH"),)))),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
    )
    # Sets of strings have the same order then, and what one rerun compiles, no other compiles again.
    environment.setdefault("PYTHONHASHSEED", "0")
    environment.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder.parent / "compiled"))
    # It would switch the recording off.
    environment.pop("PERFKIT_DISABLE", None)
    temporary = folder / "tmp"
    if len(str(temporary)) <= _MAX_TEMPORARY:
        temporary.mkdir()
        environment["TMPDIR"] = str(temporary)
    return environment | environment_of(parse_changes(plan.changes), environment)
