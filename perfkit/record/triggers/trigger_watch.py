"""Triggers: what opens a window beside the schedule, such as a step far slower than those before it, or a person.

A window opened by a trigger begins with the next step: what has made it open is over by then. So the steps *after* a
slow one are recorded, with all that goes on in them; of a slow step that stays alone there is its row in steps.jsonl
(times, phases, recompiles, garbage collections) and the sampled lines, no trace. Nothing is recorded ahead of time
for this, because that would cost every step what a window costs. Steps are judged where their rows are made, many at
once, so the window begins within a second or a step, whichever is longer.

An exception that ends the run leaves no step to record. Its trigger, and that of running out of memory, keep what can
be known of it instead: `perfkit.record.triggers.failure`.
"""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from perfkit import _clock
from perfkit.errors import UsageError
from perfkit.record.clock.step_sums import ClosedStep
from perfkit.record.triggers.failure import is_out_of_memory
from perfkit.record.triggers.trigger_sources import Recompiles, SignalListener, SlowSteps, TouchedFiles
from perfkit.record.watchers.compilations import CompileCounter

if TYPE_CHECKING:
    from perfkit.record.windows.memory_snapshot import OutOfMemoryWatch

#: Everything that can be named; "slow-step" and "signal" may have a value after "=".
KINDS = ("slow-step", "recompile", "signal", "file", "exception", "out-of-memory")
#: What is on where nothing is said: it costs two looks at the folder a second, 5 us together.
DEFAULT = ("file",)
#: A person asks for these, and waits: no time must pass since the window before.
_ASKED = ("signal", "file")
#: The file of a run's folder, or of a rank's, whose touch is the "file" trigger.
FILE = "trigger"

#: A step this many times the running median is slow. One that shares its core with another process takes twice as
#: long, which says nothing of the training; three times it does not come by itself.
TIMES = 3.0
#: SIGUSR1 is what Slurm sends before it ends a job, and Lightning listens to it only where nobody else does.
_SIGNAL = "SIGUSR2"


class Triggers(msgspec.Struct, frozen=True, kw_only=True):
    """What opens a window beside the schedule, how long it is, and how many there may be; see `triggers`."""

    kinds: tuple[str, ...]
    times: float = TIMES
    signal: str = _SIGNAL
    warmup: int = 1
    active: int = 3
    limit: int = 10
    cooldown_s: float = 30.0


def triggers(*kinds: str, warmup: int = 1, active: int = 3, limit: int = 10, cooldown_s: float = 30.0) -> Triggers:
    """Say what opens a window beside the schedule, for ``profile(triggers=...)``.

    Every rank listens by itself, also those that ``ranks=`` leaves out of the schedule's windows. The kinds are:

    - ``"slow-step"``: a training step took 3 times the median of the 64 before it and at least 10 ms more, its
      validation and checkpoints left out; ``"slow-step=1.5"`` for another factor. The steps after it are recorded.
    - ``"recompile"``: torch.compile compiled a function again.
    - ``"signal"``: the process got SIGUSR2; ``"signal=SIGUSR1"`` for another one. A handler of the program's is called
      as before, and put back at the end.
    - ``"file"``: ``perfkit trigger RUN``, from any shell that can write into the run folder; by hand, the file
      ``trigger`` in the run's folder (all ranks) or in a rank's was touched. Looked at once a second.
    - ``"exception"``: an exception ended the run. That is too late for a window; what can be known of it is kept as
      ``failure.json``: the step, the phase, how long the step had run, memory, and the user's lines.
    - ``"out-of-memory"``: likewise; and on a CUDA device the allocator's state at that moment as
      ``memory-oom.pickle`` (with Python stacks where something records the allocator's history, as
      ``recorders=("kineto", "memory")`` does in windows). A program that catches the error gets a window.

    Args:
        kinds: Those of above that are wanted, each once.
        warmup: Steps of the window that are not kept. One: the cause may soon be gone.
        active: Steps that are kept. Three, as in the default schedule: one may be odd.
        limit: Windows that each kind may open in a run, on each rank. Ten traces of a few steps are some hundred MB,
            and what ten of them did not show an eleventh will not.
        cooldown_s: Seconds after a window, whatever opened it, in which none opens by itself; a signal and a file are
            a person's wish, and heard at once. By then the trace of the window before is packed and the first verdict
            told, which may both slow a step.

    Raises:
        UsageError: a kind is not known, stands twice, or has a value that cannot be; a number is out of range.
    """
    if not kinds:
        raise UsageError(f"triggers() needs at least one of {_listed()}; for none give profile(triggers=())")
    for name, number, least in (("warmup", warmup, 0), ("active", active, 1), ("limit", limit, 1)):
        if isinstance(number, bool) or not isinstance(number, int) or number < least:
            raise UsageError(f"{name} must be a whole number of at least {least}, got {number!r}")
    if isinstance(cooldown_s, bool) or not isinstance(cooldown_s, (int, float)) or not 0 <= cooldown_s < 1e9:
        raise UsageError(f"cooldown_s must be a number of seconds, 0 or more, got {cooldown_s!r}")
    values: dict[str, Any] = {}
    words = []
    for kind in kinds:
        word, given, value = kind.partition("=") if isinstance(kind, str) else (kind, "", "")
        if word not in KINDS:
            raise UsageError(f"triggers may hold {_listed()}, got {kind!r}")
        if word in words:
            raise UsageError(f"the trigger {word!r} stands twice")
        words.append(word)
        if given and word == "slow-step":
            values["times"] = _factor(value)
        elif given and word == "signal":
            values["signal"] = value
        elif given:
            raise UsageError(f"the trigger {word!r} takes no value, got {kind!r}")
    if "signal" in words:
        _check_signal(values.get("signal", _SIGNAL))
    return Triggers(
        kinds=tuple(words), warmup=warmup, active=active, limit=limit, cooldown_s=float(cooldown_s), **values
    )


def _listed() -> str:
    return ", ".join(map(repr, KINDS))


def _factor(text: str) -> float:
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not 1 < factor < 1e6:
        raise UsageError(f"slow-step=X takes how many times the median a slow step takes, above 1, got {text!r}")
    return factor


def _check_signal(name: str) -> None:
    # Those that end, stop or tell of a program have a meaning already.
    allowed = [one for one in ("SIGUSR1", "SIGUSR2", "SIGHUP", "SIGWINCH") if hasattr(signal, one)]
    if not allowed:
        raise UsageError("this system has no signal that is free for programs: use the trigger 'file'")
    if name not in allowed:
        raise UsageError(f"signal=NAME takes one of {', '.join(allowed)}, got {name!r}")


def as_triggers(given: Triggers | str | Iterable[str] | None, recorders: tuple[str, ...]) -> Triggers:
    """What ``profile(triggers=...)`` was given; None is the default.

    Raises:
        UsageError: see `triggers`; or windows are asked for, and ``recorders`` is empty.
    """
    if given is None:
        given = DEFAULT if recorders else ()
    if isinstance(given, str):
        given = (given,)
    if not isinstance(given, Triggers):
        try:
            kinds = tuple(given)
        except TypeError as error:
            raise UsageError(f"triggers must be names or perfkit.triggers(...), got {given!r}") from error
        given = triggers(*kinds) if kinds else Triggers(kinds=())
    opening = [kind for kind in given.kinds if kind not in ("exception", "out-of-memory")]
    if opening and not recorders:
        raise UsageError(f"the trigger {opening[0]!r} opens windows, and recorders=() records none: leave one out")
    return given


def check_thread(wanted: Triggers) -> None:
    """Refuse a signal trigger where it cannot be heard, before a run begins.

    Raises:
        UsageError: this is not the main thread, or the signal belongs to something that is not Python's.
    """
    if "signal" not in wanted.kinds:
        return
    if threading.current_thread() is not threading.main_thread():
        raise UsageError(
            f"the trigger 'signal' needs the profile to start in the main thread, not in "
            f"{threading.current_thread().name!r}: Python lets no other handle signals; use the trigger 'file'"
        )
    if signal.getsignal(getattr(signal, wanted.signal)) is None:
        raise UsageError(f"{wanted.signal} has a handler outside Python, which cannot be put back: choose another")


class Request(NamedTuple):
    """A window that a trigger asks for."""

    kind: str
    reason: str


class TriggerWatch:
    """Listens for the triggers of one rank while its run goes on; `pending` is the window they ask for.

    ``folders`` are the run's and the rank's; ``wake()`` makes the end of the running step a pause; ``tell`` is told,
    and has to write down at once, why a window that was asked for will not come.
    """

    def __init__(
        self, wanted: Triggers, folders: Sequence[Path], *, wake: Callable[[], None], tell: Callable[[str], None]
    ) -> None:
        self._wanted = wanted
        self._folders = folders
        self._tell = tell
        kinds = wanted.kinds
        self._slow = SlowSteps(wanted.times) if "slow-step" in kinds else None
        self._recompiles = Recompiles() if "recompile" in kinds else None
        self._signal = SignalListener(wanted.signal, wake) if "signal" in kinds else None
        self._files: TouchedFiles | None = None
        self._memory: OutOfMemoryWatch | None = None
        self._errors = 0
        self._opened: Counter[str] = Counter()
        self._quiet_until_ns = 0
        self.pending: Request | None = None

    @property
    def warmup(self) -> int:
        """Steps of a window that are not kept."""
        return self._wanted.warmup

    @property
    def active(self) -> int:
        """Steps of a window that are kept."""
        return self._wanted.active

    def attach(self) -> None:
        """Begin to listen."""
        if "file" in self._wanted.kinds:
            # From now on: what was touched before the run was meant for another.
            self._files = TouchedFiles([folder / FILE for folder in self._folders])
        if self._signal is not None:
            self._signal.attach()
        if "out-of-memory" in self._wanted.kinds:
            from perfkit.record.windows.memory_snapshot import OutOfMemoryWatch

            self._memory = self._memory or OutOfMemoryWatch(self._folders[-1] / "memory-oom.pickle")
            if (refusal := self._memory.attach()) is not None:
                self._tell(f"out-of-memory errors are heard only in part: {refusal}")

    def detach(self) -> None:
        """Put back the signal's handler, and listen no more."""
        if self._signal is not None:
            self._signal.detach()
        if self._memory is not None:
            self._memory.detach()

    def keeps(self, error: BaseException | None) -> bool:
        """Whether what is known of the error that ended the run is to be kept; leaving on purpose is none."""
        if not isinstance(error, Exception):
            return False
        kinds = self._wanted.kinds
        return "exception" in kinds or ("out-of-memory" in kinds and is_out_of_memory(error))

    def judge(self, closed: Sequence[ClosedStep]) -> None:
        """These steps have ended, none of them in a window or of perfkit's own."""
        if self._slow is not None and (found := self._slow.judge(closed)) is not None:
            self.ask("slow-step", found)

    def look(self, compiles: CompileCounter | None) -> None:
        """Find out at a pause whether anything has happened that opens a window."""
        if self._recompiles is not None and (again := self._recompiles.look(compiles)) is not None:
            self.ask("recompile", again)
        if self._signal is not None and self._signal.came:
            self._signal.came = False
            self.ask("signal", f"signal {self._wanted.signal}")
        if self._memory is not None and self._memory.count > self._errors:
            self._errors = self._memory.count
            self.ask("out-of-memory", "an out-of-memory error that the program caught")
        if self._files is not None and self._files.look():
            self.ask("file", "file")

    def ask(self, kind: str, reason: str) -> None:
        """Ask for a window, unless there were enough, or one was just recorded."""
        asked = kind in _ASKED
        if self._opened[kind] >= self._wanted.limit:
            self._tell(
                f"the trigger {kind!r} opened {self._wanted.limit} windows, its limit, and opens no more: "
                "perfkit.triggers(..., limit=) allows more"
            )
        elif asked or (self.pending is None and _clock.now_ns() >= self._quiet_until_ns):
            self.pending = Request(kind, f"trigger: {reason}")

    def take(self) -> str:
        """The window that was asked for begins: why."""
        assert self.pending is not None
        request, self.pending = self.pending, None
        self._opened[request.kind] += 1
        return request.reason

    def refuse(self, why: str) -> None:
        """The window that was asked for will not come."""
        assert self.pending is not None
        self._tell(f"no window for {self.pending.reason.removeprefix('trigger: ')!r}: {why}")
        self.pending = None

    def window_recorded(self) -> None:
        """A window is over, or what is recorded after it: none opens by itself for a while."""
        self._quiet_until_ns = _clock.now_ns() + round(self._wanted.cooldown_s * 1e9)
        if self.pending is not None and self.pending.kind not in _ASKED:
            self.pending = None
