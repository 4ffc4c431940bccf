"""Samples which user line the training thread is in, by phase, without Kineto's stacks.

A daemon thread reads the training thread's stack every 10 ms (5 ms at first) and counts the user's line. It holds the
interpreter lock for some microseconds per sample, so it costs well under 1% of a step. A thread that holds the lock
inside one long C call is only seen when the call ends, but then on the right line.

Each sample also keeps the libraries that the line had called: they distinguish saving from logging from decoding. And
it keeps whether the thread waited, which distinguishes a sleep, a lock or a socket from Python that computes.

Samples count once their step is over: what follows the last step until the program ends is not the loop's. Those of
the first step do not, which has the set-up; where it never ends, they are the whole program's.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from types import CodeType, FrameType

import msgspec

from perfkit._code_owner import IMPORTING, expression_at, frame_of, line_of, stack_of
from perfkit._location import Location
from perfkit.record.samplers.sampled_stacks import LOADER, SampledLine, SampledStacks
from perfkit.record.samplers.switch_interval import SwitchInterval, wait_exactly
from perfkit.record.samplers.thread_state import LOOK_S, ThreadState
from perfkit.run.records import CallPaths, LineCaller, LineRow, Phase

#: 10 ms: 100 samples per second at about 30 us each are 0.3% of the training thread's time, and a minute of training
#: gives 6,000 samples, 1% of which is still 60.
PERIOD_S = 0.010
#: Maximum share of the time for the sampler's thread, including waking up and waiting for the interpreter lock. Those
#: are most of it: walking a Trainer's stack of 50 frames takes 6 us, the whole sample 40 to 150. Handing the lock over
#: and back takes the training thread about as much again.
_MAX_SHARE = 0.004
#: The first samples come twice as fast, at a hundredth of the time at most: the first verdict comes after some hundred
#: milliseconds of steps, and of 200 samples a line with a tenth of the time has 20.
_FIRST = 200
_FIRST_PERIOD_S = PERIOD_S / 2
_FIRST_SHARE = 0.01
#: Before the first step has ended, samples of an import come this seldom: they count its time, and no line's. A
#: training imports for one to three seconds, in which samples at the full rate took 50 to 100 ms.
_IMPORT_PERIOD_S = 0.05
#: Where so many steps end between two samples, half as many show the same: a loop repeats its few lines in each step.
_SHORT_STEPS = 8
#: Waits are between 0.5 and 1.5 periods, spread by the golden section, so that any stretch of waits has short and long
#: ones. With equal waits, a loop whose step takes as long as a period is always seen at the same lines.
_GOLDEN = (math.sqrt(5) - 1) / 2
#: The cost of a sample is a moving mean over about as many: some tenths of a second of training. It starts with that of
#: a usual one, so that the share holds from the first sample on, and a single sample counts as twice the mean at most:
#: the first sample of each file costs ten times a usual one, once, and would make a short run's samples rare.
_MEAN_OVER = 16
_USUAL_S = 60e-6
_AT_MOST = 2
#: Distinct lines kept; a training loop has hundreds. Beyond that only known lines are counted.
_MAX_LINES = 10_000
#: Callers kept of one line: the time of a helper that more lines call is not the work of any one of them.
_MAX_CALLERS = 8
#: Classes kept of one line in which a loader fetches: the outermost ones are in most samples.
_MAX_OBJECTS = 16
#: Whether the thread waits is looked at in one sample of three: a look wakes the sampler once more, which is a third of
#: a sample's cost, and a third of the samples gives the share of a line that matters with an error of a few percent.
_LOOK_EVERY = 3


class _Tally:
    """Samples of one line in one phase, by call path; of those that were looked at, how many waited, and where."""

    __slots__ = ("at", "looked", "paths", "samples", "waiting")

    def __init__(self) -> None:
        self.samples = self.looked = self.waiting = 0
        #: Node of the call path -> its samples.
        self.paths: dict[int, int] = {}
        #: The instruction of the line at which it was seen waiting.
        self.at: tuple[CodeType, int] | None = None

    def add(self, other: _Tally) -> None:
        self.samples += other.samples
        self.looked += other.looked
        self.waiting += other.waiting
        for node, samples in other.paths.items():
            self.paths[node] = self.paths.get(node, 0) + samples
        self.at = self.at or other.at


_Tallies = dict[tuple[Phase, SampledLine], _Tally]


class LineSampler:
    """Samples the thread with identifier ``thread``.

    ``phase`` returns the running phase, or None while samples are not to be counted; ``step`` the number of the running
    step.
    """

    def __init__(self, thread: int, phase: Callable[[], Phase | None], step: Callable[[], int]) -> None:
        self.thread = thread
        self._phase = phase
        self._step = step
        #: Samples of the steps that are over; of the running step up to its last phase; of what came after that.
        self._counts: _Tallies = {}
        self._running: _Tallies = {}
        self._after: _Tallies = {}
        self._running_step = 0
        #: Seconds before the end of the first step in which modules were imported.
        self._importing_s = 0.0
        self._stacks = SampledStacks()
        self._state = ThreadState(thread)
        #: Samples since the first step, until then since the start, and the time in which they were taken.
        self._samples = 0
        self._slept_s = 0.0
        #: The time since the sample before.
        self._waited_s = 0.0
        #: Seconds that the sampler's thread took; it competes with training for the interpreter lock.
        self.cost_s = 0.0
        #: Locked while it samples. A plain lock: Event.wait runs Python code, with the interpreter lock.
        self._stop = threading.Lock()
        self._switch = SwitchInterval()
        self._thread: threading.Thread | None = None

    @property
    def running(self) -> bool:
        """Whether it samples."""
        return self._thread is not None and self._thread.is_alive() and self._stop.locked()

    def start(self) -> None:
        """Start sampling, also again after `stop`."""
        self._stop = threading.Lock()
        self._stop.acquire()
        self._state = ThreadState(self.thread)
        self._thread = threading.Thread(target=self._run, args=(self._stop,), name="perfkit sampler", daemon=True)
        self._switch.shorten()
        self._thread.start()

    def follow(self, thread: int) -> None:
        """Sample another thread from now on."""
        self.thread, self._state = thread, ThreadState(thread)

    def stop(self) -> None:
        """Stop sampling; the counts are kept."""
        if not self._stop.locked():
            return
        self._stop.release()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(timeout=1.0)
        self._switch.restore()

    def rest(self) -> None:
        """The thread that trains does perfkit's work: what it is at now is no line's."""
        self._switch.rest()

    def resume(self) -> None:
        """The thread trains again."""
        self._switch.resume()
        if self.running:
            self._switch.shorten()

    def leave_loop(self) -> None:
        """The program leaves the loop: what came after the last phase of the running step is not that step's."""
        if self._running_step:
            self._after = {}

    def _run(self, stopped: threading.Lock) -> None:
        wait_exactly()
        last, worked_s = time.perf_counter(), time.thread_time()
        period = _FIRST_PERIOD_S
        mean_s = _USUAL_S
        importing = False
        while not stopped.acquire(timeout=period * (0.5 + self._samples * _GOLDEN % 1)):
            # Not to be interrupted: phase and stack must be of the same moment.
            self._switch.restore()
            now = time.perf_counter()
            self._waited_s, last = now - last, now
            phase = self._phase()
            if phase is None:
                # Nothing was sampled for it, so it is in no mean.
                until_s = time.thread_time()
                self.cost_s, worked_s = self.cost_s + until_s - worked_s, until_s
                self._switch.shorten()
                continue
            step = self._step()
            steps = step - self._running_step
            self._settle(step)
            imported, importing = importing, self._sample(phase, stopped)
            if not (imported or importing):
                # Those of imports are further apart, and so is the first one after them.
                self._samples += 1
                self._slept_s += self._waited_s
            # CPU time: on a busy machine most of the wall time is waiting for the lock, which costs training nothing.
            until_s = time.thread_time()
            cost_s, worked_s = until_s - worked_s, until_s
            self.cost_s += cost_s
            mean_s += (min(cost_s, _AT_MOST * mean_s) - mean_s) / _MEAN_OVER
            period = _IMPORT_PERIOD_S if importing else period_after(mean_s, first=self._samples <= _FIRST, steps=steps)
            self._switch.shorten()
        self._switch.restore()
        stopped.release()

    def _settle(self, step: int) -> None:
        """Count the samples of the last step that was sampled if it is over."""
        if step != self._running_step:
            for tallies in (self._running, self._after) if self._running_step else ():
                self._merge(tallies, self._counts)
            if not self._running_step:
                # The set-up's samples, many and close together, say nothing of how far apart those of the steps are.
                self._samples, self._slept_s = 0, 0.0
            self._running, self._after, self._running_step = {}, {}, step

    def _merge(self, tallies: _Tallies, into: _Tallies) -> None:
        for key, tally in tallies.items():
            if key in into:
                into[key].add(tally)
            elif len(into) < _MAX_LINES:
                into[key] = tally

    def _sample(self, phase: Phase, stopped: threading.Lock) -> bool:
        """Take a sample; returns whether it is of an import before the first step has ended."""
        state = self._state
        looks = state.known and phase != "validation" and self._samples % _LOOK_EVERY == 0
        if looks:
            state.look()
        stack = stack_of(frame_of(self.thread))
        if not self._running_step and any(code.co_filename == IMPORTING for code, _ in stack):
            self._importing_s += self._waited_s
            return True
        line, node = self._stacks.of(phase, stack)
        if line is None:
            return False
        tally = _Tally()
        tally.samples = 1
        if node is not None:
            tally.paths[node] = 1
        # Where a loader's own code waits for its workers, as a matter of course, a look would tell nothing.
        if looks and not (phase == "data" and line.within.startswith(LOADER)):
            # A thread that has used the processor meanwhile computes outside of the interpreter lock.
            waits = False if state.has_run() else self._waits(stopped)
            tally.looked, tally.waiting = int(waits is not None), int(bool(waits))
            if waits:
                tally.at = _instruction(frame_of(self.thread), line)
        if phase != "other" and self._after:
            self._merge(self._after, self._running)
            self._after = {}
        self._merge({(phase, line): tally}, self._after if phase == "other" else self._running)
        return False

    def _waits(self, stopped: threading.Lock) -> bool | None:
        """Whether the thread does nothing although it could have the interpreter lock; None: not known."""
        self._state.look()
        self._switch.shorten()
        if stopped.acquire(timeout=LOOK_S):
            stopped.release()
            return None
        return self._state.waits()

    @property
    def period_ns(self) -> float:
        """The mean time between two samples, as measured."""
        return self._slept_s / self._samples * 1e9 if self._samples else PERIOD_S * 1e9

    @property
    def import_ns(self) -> int:
        """Time in which modules were imported before the first step ended."""
        return round(self._importing_s * 1e9)

    def rows(self, steps: int | None) -> tuple[int, tuple[LineRow, ...]]:
        """The mean period between samples in ns as measured, and host time per line and step, most samples first.

        With None, the time per line of the whole program, in which no step has ended.
        """
        period_ns = self.period_ns
        if not self._samples or steps == 0:
            return round(period_ns), ()
        lines: dict[tuple[Phase, Location], list[tuple[SampledLine, _Tally]]] = {}
        for (phase, line), tally in self._counted(steps):
            lines.setdefault((phase, line.at), []).append((line, tally))
        rows = [self._row(phase, at, counted, period_ns / (steps or 1)) for (phase, at), counted in lines.items()]
        return round(period_ns), tuple(sorted(rows, key=lambda row: -row.samples))

    def call_paths(self, steps: int | None) -> CallPaths | None:
        """The call paths of the samples that `rows` counts; None where there are none."""
        samples: Counter[int] = Counter()
        for _, tally in self._counted(steps):
            samples.update(tally.paths.copy())
        return self._stacks.paths.record(samples) if samples else None

    def _counted(self, steps: int | None) -> Iterator[tuple[tuple[Phase, SampledLine], _Tally]]:
        # The running step is over if another one runs by now; of a whole program, it is all there is.
        counted_too = steps is None or self._step() > self._running_step > 0
        for tallies in (self._counts, *((self._running, self._after) if counted_too else ())):
            yield from list(tallies.items())

    def _row(self, phase: Phase, at: Location, counted: list[tuple[SampledLine, _Tally]], sample_ns: float) -> LineRow:
        within: Counter[str] = Counter()
        waiting: Counter[str] = Counter()
        looked: Counter[str] = Counter()
        callers: Counter[Location | None] = Counter()
        objects: Counter[str] = Counter()
        for line, tally in counted:
            within[line.within] += tally.samples
            waiting[line.within] += tally.waiting
            looked[line.within] += tally.looked
            callers[line.called_from] += tally.samples
            objects.update(dict.fromkeys(line.objects, tally.samples))
        longest = max((tally for _, tally in counted), key=lambda tally: tally.waiting)
        waited = {name: round(within[name] * count / looked[name]) for name, count in waiting.items() if count}
        return LineRow(
            **msgspec.structs.asdict(at),
            phase=phase,
            samples=within.total(),
            host_ns=round(within.total() * sample_ns),
            within=dict(within),
            waiting=waited if looked.total() else None,
            waits_for=expression_at(*longest.at) if longest.at is not None else "",
            called_from=callers.most_common(1)[0][0],
            callers=_several(callers),
            objects=dict(objects.most_common(_MAX_OBJECTS)),
        )


def period_after(cost_s: float, *, first: bool, steps: int) -> float:
    """Seconds to the next sample, given the mean cost of one, and how many steps ended since the sample before."""
    period, share = (_FIRST_PERIOD_S, _FIRST_SHARE) if first else (PERIOD_S, _MAX_SHARE)
    return max(2 * period if steps >= _SHORT_STEPS else period, cost_s / share)


def _several(callers: Counter[Location | None]) -> tuple[LineCaller, ...]:
    known = [(at, samples) for at, samples in callers.most_common(_MAX_CALLERS) if at is not None]
    return tuple(LineCaller(**msgspec.structs.asdict(at), samples=n) for at, n in known) if len(known) > 1 else ()


def _instruction(frame: FrameType | None, line: SampledLine) -> tuple[CodeType, int] | None:
    """Where in the user's line a thread is that waits: the code and the instruction."""
    while frame is not None:
        if frame.f_code.co_filename == line.file and line_of(frame) == line.line:
            return frame.f_code, frame.f_lasti
        frame = frame.f_back
    return None
