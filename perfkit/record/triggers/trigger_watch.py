"""Decides when a trigger opens a window outside the schedule, such as after a very slow step or on a user's request.

A window opened by a trigger begins with the next step: its cause is over by then. So the steps *after* a slow one are
recorded, with everything in them. A single slow step only leaves its row in steps.jsonl (times, phases,
recompiles, garbage collections) and the sampled lines, no trace: recording ahead of time would cost every step what a
window costs. Steps are checked where their rows are made, many at once, so the window begins within a second or a step,
whichever is longer.

After an exception that ends the run there is no step to record. Its trigger, and that of running out of memory, keep
what is known of it instead: `perfkit.record.triggers.failure`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from perfkit import _clock, _env
from perfkit.record.clock.step_sums import ClosedStep
from perfkit.record.triggers.failure import is_out_of_memory
from perfkit.record.triggers.slow_steps import SlowSteps
from perfkit.record.triggers.trigger_settings import Triggers
from perfkit.record.triggers.trigger_sources import Recompiles, SignalListener, TouchedFiles
from perfkit.record.watchers.compilations import CompileCounter
from perfkit.record.windows.memory_snapshot import OutOfMemoryWatch

#: A person requests these, and waits, or they come once: no time must pass since the window before.
_REQUESTED = ("signal", "file", "training")
#: The file of a run's folder, or of a rank's, whose touch is the "file" trigger.
FILE = "trigger"


class Request(NamedTuple):
    """A window that a trigger requests."""

    kind: str
    reason: str


class TriggerWatch:
    """The triggers of one rank during its run; `pending` is the window that they request.

    Args:
        settings: The triggers.
        folders: The run's folder and the rank's.
        wake: Makes the end of the running step a pause.
        note: Writes down at once why a requested window will not come.
    """

    def __init__(
        self, settings: Triggers, folders: Sequence[Path], *, wake: Callable[[], None], note: Callable[[str], None]
    ) -> None:
        self.settings = settings
        self._folders = folders
        self._note = note
        kinds = settings.kinds
        self._slow = SlowSteps(settings.times) if "slow-step" in kinds else None
        self._recompiles = Recompiles() if "recompile" in kinds else None
        self._signal = SignalListener(settings.signal, wake) if "signal" in kinds else None
        self._memory = OutOfMemoryWatch(folders[-1] / "memory-oom.pickle") if "out-of-memory" in kinds else None
        self._files: TouchedFiles | None = None
        self._memory_errors = 0
        self._opened: Counter[str] = Counter()
        self._quiet_until_ns = 0
        self.pending: Request | None = None

    def attach(self) -> None:
        """Start watching."""
        if "file" in self.settings.kinds:
            # From now on: what was touched before the run was meant for another one.
            self._files = TouchedFiles([folder / FILE for folder in self._folders])
        if self._signal is not None:
            self._signal.attach()
        self._watch_memory()

    def _watch_memory(self) -> None:
        if self._memory is None or self._memory.attached or not _env.cuda_in_use():
            return
        if (problem := self._memory.attach()) is not None:
            self._note(f"only some out-of-memory errors are detected: {problem}")

    def detach(self) -> None:
        """Restore the signal's handler, and stop watching."""
        if self._signal is not None:
            self._signal.detach()
        if self._memory is not None:
            if not self._memory.attached:
                self._note(
                    "only some out-of-memory errors are detected: the program does not use CUDA, and an error of the "
                    "host's memory is only detected if it ends the run"
                )
            self._memory.detach()

    def keeps_failure(self, error: BaseException | None) -> bool:
        """Whether to keep what is known of the error that ended the run; SystemExit and Ctrl-C are no errors."""
        if not isinstance(error, Exception):
            return False
        kinds = self.settings.kinds
        return "exception" in kinds or ("out-of-memory" in kinds and is_out_of_memory(error))

    def check_steps(self, closed: Sequence[ClosedStep]) -> None:
        """Check whether any of these steps, which have ended and were not recorded, was slow."""
        if self._slow is not None and (found := self._slow.check(closed)) is not None:
            self.request("slow-step", found)

    def poll(self, compiles: CompileCounter) -> None:
        """Check, between two steps, everything else that opens a window."""
        self._watch_memory()
        if self._recompiles is not None and (found := self._recompiles.poll(compiles)) is not None:
            self.request("recompile", found)
        if self._signal is not None and self._signal.received:
            self._signal.received = False
            self.request("signal", f"signal {self.settings.signal}")
        if self._memory is not None and self._memory.count > self._memory_errors:
            self._memory_errors = self._memory.count
            self.request("out-of-memory", "an out-of-memory error that the program caught")
        if self._files is not None and self._files.poll():
            self.request("file", "file")

    def request(self, kind: str, reason: str) -> None:
        """Request a window, unless there were enough of this kind, or one was just recorded."""
        if self._opened[kind] >= self.settings.limit:
            self._note(
                f"the trigger {kind!r} opened {self.settings.limit} windows, its limit, and opens no more; "
                "perfkit.triggers(..., limit=) sets the limit"
            )
        elif kind in _REQUESTED or (self.pending is None and _clock.now_ns() >= self._quiet_until_ns):
            self.pending = Request(kind, f"trigger: {reason}")

    def take(self) -> str:
        """The requested window begins; returns its reason."""
        assert self.pending is not None
        request, self.pending = self.pending, None
        self._opened[request.kind] += 1
        return request.reason

    def refuse(self, why: str) -> None:
        """The requested window will not come."""
        assert self.pending is not None
        self._note(f"no window for {self.pending.reason.removeprefix('trigger: ')!r}: {why}")
        self.pending = None

    def start_cooldown(self) -> None:
        """A window is over, or what is recorded after it: only a person's request opens another one for a while."""
        self._quiet_until_ns = _clock.now_ns() + round(self.settings.cooldown_s * 1e9)
        if self.pending is not None and self.pending.kind not in _REQUESTED:
            self.pending = None
