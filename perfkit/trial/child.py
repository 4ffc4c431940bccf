"""``python -m perfkit.trial.child PLAN.json``: runs the user's program once more, as its plan says."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from pathlib import Path

import msgspec

from perfkit import _env
from perfkit._code_owner import USER, claim, owner_of
from perfkit.errors import PerfkitError, UsageError
from perfkit.profiler import profile
from perfkit.record.watchers.step_memory import peak_resident_bytes
from perfkit.run.atomic import write_atomically
from perfkit.script import Additions, execute, find
from perfkit.trial.applied import changes
from perfkit.trial.protection import Refusal, protect_process
from perfkit.trial.reruns import STEPPING, ProgramEnding, RerunTask
from perfkit.trial.seeds import fix_seeds
from perfkit.trial.switchback import follow
from perfkit.trial.work_folder import WorkFolder

#: How errors of memory are worded that are no MemoryError and no torch.OutOfMemoryError.
_OUT_OF_MEMORY = (
    "out of memory",
    "can't allocate memory",  # torch's allocator of a CPU
    "Cannot allocate memory",  # ENOMEM
    "is killed by signal: Killed",  # a loader's worker
    "out of shared memory",
    "_ALLOC_FAILED",  # cuBLAS and cuDNN
    "std::bad_alloc",
)


def main(plan: str) -> int:
    """Run the program of a plan; returns its exit code."""
    folder = Path(plan).parent
    task = msgspec.json.decode(Path(plan).read_bytes(), type=RerunTask)
    try:
        return _run(task, folder)
    except UsageError as error:
        _write_ending(folder, ProgramEnding("failed", str(error)))
        return 2


def _run(task: RerunTask, folder: Path) -> int:
    program, wanted = task.program, task.plan
    protect_process()
    fix_seeds(wanted.seed_offset)
    target = find(program.script, program.module)
    shown = WorkFolder(Path(task.source), folder / "root")
    claim(shown.user_path(os.path.abspath(target.parent if program.module else target)))
    prof = profile(
        folder / "run",
        # Without a rank that records windows, each step is an ordinary one.
        ranks=(0,) if wanted.record else (),
        triggers=(),
        stop_after=wanted.steps,
        quiet=True,
    )
    prof.diagnoses = wanted.record
    additions = _RerunAdditions(task, folder)
    return execute(prof, target, program.script, list(program.arguments), program.module, additions)


class _RerunAdditions(Additions):
    """What happens to a rerun beside its recording."""

    def __init__(self, task: RerunTask, folder: Path) -> None:
        wanted = task.plan
        self._switching, self._stops = wanted.switch, wanted.stops
        chosen = (wanted.changes, wanted.switch.changes if wanted.switch is not None else ())
        applied = [changes(*names) for names in chosen if names]
        super().__init__(applied, wanted.log_loss)
        self._last = applied[-1] if applied else None
        self._folder = folder

    def start(self, prof: profile) -> None:
        super().start(prof)
        if self._switching is not None and self._last is not None:
            follow(self._switching, self._last, prof)
        if self._stops and _env.rank() == 0:
            prof._follow_steps("stopping after the first step", self._stop_here)

    def _stop_here(self, step: int) -> bool:
        """Stop until the other program is as far; stopped from outside, a short program would be over by then."""
        (self._folder / STEPPING).touch()
        os.kill(os.getpid(), signal.SIGSTOP)
        return False

    def stop(self, prof: profile, error: BaseException | None) -> None:
        super().stop(prof, error)
        # A program that was interrupted was ended from outside, which knows why.
        if not isinstance(error, KeyboardInterrupt):
            ending = ending_of(error)
            _write_ending(self._folder, msgspec.structs.replace(ending, peak_bytes=peak_resident_bytes()))


def ending_of(error: BaseException | None) -> ProgramEnding:
    """How a program ended that raised ``error``; "ended" where it did not fail."""
    if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
        return ProgramEnding("ended", "the program was over")
    if isinstance(error, SystemExit) and error.__cause__ is not None:
        return ending_of(error.__cause__)  # a change that cannot be applied
    if isinstance(error, SystemExit):
        text = f"ended with exit code {error.code}" if isinstance(error.code, int) else f"ended: {error.code}"
        return ProgramEnding("failed", f"the program {text}")
    if isinstance(error, Refusal):
        return ProgramEnding("refused", str(error))
    text = _text_of(error)
    out_of_memory = isinstance(error, MemoryError) or any(words in text for words in _OUT_OF_MEMORY)
    return ProgramEnding("out-of-memory" if out_of_memory else "failed", text)


def _text_of(error: BaseException) -> str:
    lines = f"{type(error).__name__}: {error}".rstrip(": ").splitlines()
    if isinstance(error, PerfkitError):
        return str(error)
    line = lines[-1] if any(line.startswith("Original Traceback") for line in lines) else lines[0]
    places = [
        f"{Path(frame.f_code.co_filename).name}:{number}"
        for frame, number in traceback.walk_tb(error.__traceback__)
        if owner_of(frame.f_code.co_filename) == USER
    ]
    return f"{line} ({places[-1]})" if places else line


def _write_ending(folder: Path, ending: ProgramEnding) -> None:
    write_atomically(folder / f"ending-{_env.rank()}.json", msgspec.json.encode(ending))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
