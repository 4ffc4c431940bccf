"""A light sampler: which user line the training thread is in, by phase, without Kineto's stacks.

A daemon thread looks at the training thread's stack every 10 ms (5 at first) and books the user's line. It holds the
interpreter lock for some microseconds each time, so it costs well under 1 % of a step. What it cannot
see: a thread that holds the lock inside one long C call is seen when the call ends, on the right line.

With the line it books which libraries the line had called: they tell saving from logging from decoding.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import CodeType
from typing import NamedTuple, TypeVar

from perfkit._code_owner import USER, function_name, owner_of, stack_of
from perfkit._location import Location
from perfkit.record.samplers.switch_interval import SwitchInterval
from perfkit.run.records import LineRow, Phase

#: 10 ms: 100 samples a second at about 30 us each are 0.3 % of the training thread's time, and a minute
#: of training gives 6,000 samples, 1 % of which is still 60.
PERIOD_S = 0.010
#: What the sampler's thread may take of the time, its waking up and its wait for the interpreter's lock counted, which
#: are most of it: walking a Trainer's stack of 50 frames takes 6 us, and the whole sample 40 to 150. Handing that lock
#: over and back takes the training thread about as much again.
_SHARE = 0.004
#: So many come twice as fast, whatever they cost: the first verdict comes after some hundred milliseconds of steps,
#: and of 200 samples a line with a tenth of the time has 20. 200 of 0.1 ms are 20 ms, once in a run.
_FIRST = 200
_FIRST_PERIOD_S = PERIOD_S / 2
#: Waits are between half and one and a half of the period, spread by the golden section, so that each stretch of
#: waits has short and long ones. With equal waits a loop whose step takes as long as a period is always seen at the
#: same lines.
_GOLDEN = (math.sqrt(5) - 1) / 2
#: The cost of a sample is a moving mean over about as many: some tenths of a second of training.
_USUAL = 16
#: Distinct lines kept; a training loop has hundreds. Beyond that only lines already known are counted.
_MAX_LINES = 10_000

#: Libraries of one stack that are told apart, from the user's line on: what it called, not that library's depths.
_MAX_DEPTH = 6

#: What stands for functions of libraries that save a checkpoint: what they call (moving, copying, writing) is that.
CHECKPOINT = "checkpoint"
_SAVING = frozenset({"save_checkpoint", "_save_checkpoint", "save_pretrained", "save_state", "save_weights"})


_T = TypeVar("_T")


class Where(NamedTuple):
    """The user's line of a stack (else a library's), the libraries that it had called, and who called its function."""

    file: str
    line: int
    function: str
    owner: str
    within: str = ""
    called_from: Location | None = None


_Key = tuple[Phase, Where]


class StackSampler:
    """Samples one thread while the profiler says that a step is timed.

    ``thread`` is its identifier; ``phase`` is asked for the running phase, or None while nothing should be booked.
    """

    def __init__(self, thread: int, phase: Callable[[], Phase | None]) -> None:
        self.thread = thread
        self._phase = phase
        self._counts: dict[_Key, int] = {}
        self._samples = 0
        self._slept_s = 0.0
        #: What sampling itself took, seconds of the sampler's thread; it competes with training for the lock.
        self.cost_s = 0.0
        #: Held while it samples. A plain lock: an Event's wait runs Python code, with the interpreter lock.
        self._stop = threading.Lock()
        self._switch = SwitchInterval()
        self._sampling: threading.Thread | None = None

    @property
    def running(self) -> bool:
        """Whether it samples."""
        return self._sampling is not None and self._sampling.is_alive() and self._stop.locked()

    def start(self) -> None:
        """Begin to sample, again after `stop`."""
        self._stop = threading.Lock()
        self._stop.acquire()
        self._sampling = threading.Thread(target=self._run, args=(self._stop,), name="perfkit sampler", daemon=True)
        self._switch.shorten()
        self._sampling.start()

    def stop(self) -> None:
        """End sampling; what was counted stays."""
        if not self._stop.locked():
            return
        self._stop.release()
        if self._sampling is not None and self._sampling.is_alive():
            self._sampling.join(timeout=1.0)
        self._switch.restore()

    def _run(self, stopped: threading.Lock) -> None:
        last, worked_s = time.perf_counter(), time.thread_time()
        period = _FIRST_PERIOD_S
        usual_s = 0.0
        while not stopped.acquire(timeout=period * (0.5 + self._samples * _GOLDEN % 1)):
            # Not to be interrupted: phase and stack are to be of one moment.
            self._switch.restore()
            now = time.perf_counter()
            waited, last = now - last, now
            phase = self._phase()
            if phase is None:
                worked_s = time.thread_time()  # nothing was sampled for it
                self._switch.shorten()
                continue
            where = find_line(stack_of(sys._current_frames().get(self.thread)))
            if where is not None:
                key = (phase, where)
                if key in self._counts or len(self._counts) < _MAX_LINES:
                    self._counts[key] = self._counts.get(key, 0) + 1
            self._samples += 1
            self._slept_s += waited
            # CPU time: on a busy machine most of the wall time is waiting for the lock, which costs training nothing.
            until_s = time.thread_time()
            cost_s, worked_s = until_s - worked_s, until_s
            self.cost_s += cost_s
            # On a busy machine each takes longer, and they are taken less often. The first looks at new files cost ten
            # times a usual one: a mean over all would leave a short run with half of its samples.
            usual_s += (cost_s - usual_s) / _USUAL
            period = max(PERIOD_S, usual_s / _SHARE) if self._samples > _FIRST else _FIRST_PERIOD_S
            self._switch.shorten()
        self._switch.restore()
        stopped.release()

    def rows(self, steps: int) -> tuple[int, tuple[LineRow, ...]]:
        """Period between samples in ns as it was in fact, and host time per line and step, the most first."""
        if not self._samples or not steps:
            return round(PERIOD_S * 1e9), ()
        period_ns = self._slept_s / self._samples * 1e9
        found: dict[tuple[Phase, str, int, str, str], list[tuple[Where, int]]] = {}
        for (phase, where), count in list(self._counts.items()):
            found.setdefault((phase, *where[:4]), []).append((where, count))
        rows = [
            LineRow(
                file=file,
                line=line,
                function=function,
                owner=owner,
                phase=phase,
                samples=(samples := sum(count for _, count in seen)),
                host_ns=round(samples * period_ns / steps),
                within=_added(seen, lambda where: where.within),
                called_from=max((callers := _added(seen, lambda where: where.called_from)), key=lambda by: callers[by]),
            )
            for (phase, file, line, function, owner), seen in found.items()
        ]
        return round(period_ns), tuple(sorted(rows, key=lambda row: -row.samples))


def _added(seen: list[tuple[Where, int]], by: Callable[[Where], _T]) -> dict[_T, int]:
    sums: dict[_T, int] = {}
    for where, count in seen:
        sums[by(where)] = sums.get(by(where), 0) + count
    return sums


def find_line(stack: Sequence[tuple[CodeType, int]]) -> Where | None:
    """The user's line of a stack, else a library's, as `perfkit._code_owner` has it; with the libraries below it."""
    library: Where | None = None
    below: list[str] = []
    for depth, (code, line) in enumerate(stack):
        file = code.co_filename
        owner = owner_of(file)
        if owner == USER:
            function = function_name(code)
            within = " > ".join(below[: -_MAX_DEPTH - 1 : -1])
            return Where(file, line, function, USER, within, _find_caller(stack[depth + 1 :], file, function))
        if owner != "perfkit":
            name = CHECKPOINT if code.co_name in _SAVING else library_of(file)
            if not below or below[-1] != name:
                below.append(name)
            if library is None and owner not in ("torch", "python"):
                library = Where(file, line, function_name(code), owner)
    return library


def _find_caller(stack: Sequence[tuple[CodeType, int]], file: str, function: str) -> Location | None:
    """The next line outwards that is of another function of the user's: a comprehension is its function's line."""
    for code, line in stack:
        if owner_of(code.co_filename) == USER:
            name = function_name(code)
            if name != function or code.co_filename != file:
                return Location(file=code.co_filename, line=line, function=name)
    return None


#: File name -> what `library_of` calls it.
_libraries: dict[str, str] = {}


def library_of(file: str) -> str:
    """What library a file is of: ``json``, ``PIL``, ``numpy``; a part of torch as ``torch.serialization``."""
    try:
        return _libraries[file]
    except KeyError:
        name = _libraries[file] = _find_library(file)
        return name


def _find_library(file: str) -> str:
    owner = owner_of(file)
    folder = os.path.dirname(os.__file__) if owner == "python" else f"{os.sep}torch"
    if owner not in ("python", "torch") or file.startswith("<"):
        return owner
    parts = os.path.realpath(file).rpartition(os.path.realpath(folder) if owner == "python" else folder + os.sep)[2]
    names = parts.strip(os.sep).removesuffix(".py").split(os.sep)
    if owner == "python":
        return names[0]
    # "torch.utils" alone says nothing: TensorBoard's writer, the loader and the checkpoints are in it.
    return ".".join(("torch", *names[: 2 if names[0] == "utils" else 1])).removesuffix(".__init__")
