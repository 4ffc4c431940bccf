"""Which triggers a profile has: what ``profile(triggers=...)`` and `triggers` accept, and their defaults."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable
from typing import Any

import msgspec

from perfkit.errors import UsageError, check_whole_number

#: All kinds; "slow-step" and "signal" may have a value after "=".
KINDS = ("slow-step", "recompile", "signal", "file", "exception", "out-of-memory")
#: The triggers of a profile that names none: two checks of the folder per second, 5 us together.
DEFAULT = ("file",)

#: A step this many times the running median is slow. A step that shares its core with another process takes twice as
#: long, which is no fault of the training; three times does not happen by itself.
_SLOW_TIMES = 3.0
#: SIGUSR1 is what Slurm sends before it ends a job, and Lightning only handles it where nobody else does.
_SIGNAL = "SIGUSR2"


class Triggers(msgspec.Struct, frozen=True, kw_only=True):
    """What opens a window outside the schedule, how long it is, and how many there may be; see `triggers`."""

    kinds: tuple[str, ...]
    times: float = _SLOW_TIMES
    signal: str = _SIGNAL
    warmup: int = 1
    active: int = 3
    limit: int = 10
    cooldown_s: float = 30.0


def triggers(*kinds: str, warmup: int = 1, active: int = 3, limit: int = 10, cooldown_s: float = 30.0) -> Triggers:
    """Choose what opens a window outside the schedule, for ``profile(triggers=...)``.

    Every rank has its own triggers, also those that ``ranks=`` leaves out of the schedule's windows. The kinds are:

    - ``"slow-step"``: a training step took 3 times the median of the 64 before it and at least 10 ms more, without its
      validation and checkpoints; ``"slow-step=1.5"`` for another factor. The steps after it are recorded.
    - ``"recompile"``: torch.compile compiled a function again.
    - ``"signal"``: the process got SIGUSR2; ``"signal=SIGUSR1"`` for another one. The program's own handler is still
      called, and restored at the end.
    - ``"file"``: ``perfkit trigger RUN``, from any shell that can write into the run folder; by hand, the file
      ``trigger`` in the run folder (all ranks) or in a rank's folder was touched. Checked once per second.
    - ``"exception"``: an exception ended the run. That is too late for a window; what is known of it is kept as
      ``failure.json``: the step, the phase, how long the step had run, memory, and the user's lines.
    - ``"out-of-memory"``: the same for out-of-memory errors; on a CUDA device also the allocator's state at that moment
      as ``memory-oom.pickle`` (with Python stacks where something records the allocator's history, as
      ``recorders=("kineto", "memory")`` does in windows). A program that catches the error gets a window.

    Args:
        kinds: The kinds to use, each once.
        warmup: Steps of the window that are not kept. Default 1, because the cause may soon be over.
        active: Steps that are kept. Default 3, as in the default schedule, because one may be unusual.
        limit: Maximum number of windows per kind and rank in a run. Default 10: ten traces of a few steps are some
            hundred MB, and an eleventh shows nothing new.
        cooldown_s: Seconds after any window in which no trigger opens another, except signals and files, which are a
            person's request. Default 30: by then the trace of the window is packed and the first verdict is printed,
            both of which may slow a step.

    Raises:
        UsageError: a kind is unknown, repeated, or has an invalid value; a number is out of range.
    """
    if not kinds:
        raise UsageError(f"triggers() needs at least one of {_listed()}; for none use profile(triggers=())")
    for name, number, minimum in (("warmup", warmup, 0), ("active", active, 1), ("limit", limit, 1)):
        check_whole_number(name, number, minimum=minimum)
    if isinstance(cooldown_s, bool) or not isinstance(cooldown_s, (int, float)) or not 0 <= cooldown_s < 1e9:
        raise UsageError(f"cooldown_s must be a number of seconds, 0 or more, got {cooldown_s!r}")
    values: dict[str, Any] = {}
    words = []
    for kind in kinds:
        word, given, value = kind.partition("=") if isinstance(kind, str) else (kind, "", "")
        if word not in KINDS:
            raise UsageError(f"triggers may hold {_listed()}, got {kind!r}")
        if word in words:
            raise UsageError(f"the trigger {word!r} is given twice")
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
    # Signals that end or stop a program, or report on it, already have a meaning.
    allowed = [one for one in ("SIGUSR1", "SIGUSR2", "SIGHUP", "SIGWINCH") if hasattr(signal, one)]
    if not allowed:
        raise UsageError("this system has no signal for programs' own use: use the trigger 'file'")
    if name not in allowed:
        raise UsageError(f"signal=NAME takes one of {', '.join(allowed)}, got {name!r}")


def as_triggers(given: Triggers | str | Iterable[str] | None, recorders: tuple[str, ...]) -> Triggers:
    """The triggers of ``profile(triggers=given)``; None is the default.

    Raises:
        UsageError: see `triggers`; or a trigger opens windows, and ``recorders`` is empty.
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
        raise UsageError(f"the trigger {opening[0]!r} opens windows, and recorders=() records none: remove one of them")
    return given


def check_thread(wanted: Triggers) -> None:
    """Refuse a signal trigger that cannot work, before a run begins.

    Raises:
        UsageError: this is not the main thread, or the signal has a handler outside Python.
    """
    if "signal" not in wanted.kinds:
        return
    if threading.current_thread() is not threading.main_thread():
        raise UsageError(
            f"the trigger 'signal' needs the profile to start in the main thread, not in "
            f"{threading.current_thread().name!r}: Python handles signals only there; use the trigger 'file'"
        )
    if signal.getsignal(getattr(signal, wanted.signal)) is None:
        raise UsageError(f"{wanted.signal} has a handler outside Python, which cannot be restored: choose another")
