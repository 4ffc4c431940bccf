"""Traces the user's lines for one step: how often each ran, and how long it took with everything that it called.

This finds the loop behind many small operations. It is ``sys.settrace`` limited to user code: frames of torch or of a
library are not traced. The step is slower than others, so it counts as part of its window and is left out of every
timing. Nothing is traced while a debugger or a coverage tool traces the thread.

The tracer also sees which modules a line calls (`ModuleCallLog`): ``torch.nn.Module.__call__`` is the only function of
torch whose calls it inspects.
"""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice, takewhile
from types import CodeType, FrameType
from typing import Any

from torch import autograd
from torch.nn import Module
from torch.utils.data.dataloader import _BaseDataLoaderIter

from perfkit._code_owner import USER, does_own_work, frames_outwards, function_name, line_of, owner_of
from perfkit.ranges import dynamo
from perfkit.record.samplers.call_paths import Path, Site, location_of
from perfkit.record.samplers.carried_names import carrying_loops
from perfkit.record.samplers.constant_calls import ConstantCallLog
from perfkit.record.samplers.gradient_calls import GradientCallLog
from perfkit.record.samplers.module_calls import ModuleCall, ModuleCallLog
from perfkit.record.samplers.source_loops import innermost_loops, loop_around
from perfkit.record.samplers.trace_functions import Trace, stops_at_error, user_caller
from perfkit.run.records import Phase, TracedLine

#: Line events after which tracing stops: at about 0.5 us each, two million add one second to one step.
_MAX_EVENTS = 2_000_000

#: Names of torch's functions that are counted: few others have them, and comparing code objects takes longer.
_COUNTED = ("backward", "grad", "__next__")

#: Lines kept of those that call a function.
_MAX_CALLERS = 8
#: Lines kept of those that lead to the call of a module.
_MAX_PATH = 16


class LineTracer:
    """Counts and times user lines on the calling thread between `start` and `stop`.

    It ends early after ``max_events`` lines or ``max_calls`` calls of modules (None: any number), and all times are
    until then. ``ended_at`` returns when the step ended that is traced, where that was before `stop`; None: now.
    """

    def __init__(
        self,
        phase: Callable[[], Phase],
        *,
        max_events: int = _MAX_EVENTS,
        max_calls: int | None = None,
        ended_at: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._phase = phase
        self.ended_at = ended_at
        self._max_events, self._max_calls = max_events, max_calls
        #: Whether all of it was traced.
        self.complete = True
        #: Runs, ns, and whether it ran before any module did; in the order in which they ran first.
        self._lines: dict[tuple[Phase, CodeType, int], list[int]] = {}
        #: The same by the ids of the codes: Python hashes all that a code holds, each time that it is asked.
        self._line_of: dict[tuple[Phase, int, int], list[int]] = {}
        #: Keeps these ids from being used again.
        self._kept: list[CodeType] = []
        #: perfkit's own time in the step, until it ended, and the time without it: when the last trace function began.
        self.own_ns = self.now_ns = 0
        #: The frame that does perfkit's own work, with what it calls, and when it began.
        self._own_frame: tuple[FrameType, int] | None = None
        self._modules = ModuleCallLog(lambda: self.now_ns)
        self._constants = ConstantCallLog(lambda: self.now_ns)
        self._gradients = GradientCallLog()
        self._module_call = _code_of(Module.__call__)
        self._grad = _code_of(autograd.grad)
        self._backward = {_code_of(autograd.backward), self._grad}
        self._fetch = _code_of(_BaseDataLoaderIter.__next__)
        self._calls: dict[FrameType, ModuleCall] = {}
        #: Time of modules and the user's functions that were called from lines that began before the tracing did.
        self._beneath: dict[tuple[Site, Phase], int] = {}
        #: Those of them that have not returned.
        self._outermost: dict[FrameType, tuple[Site, Phase, int]] = {}
        #: Function -> the first of the user's lines that called it.
        self._callers: dict[CodeType, dict[Site, None]] = {}
        #: The line of ``_lines`` that each frame is in, and when it came there.
        self._open: dict[FrameType, tuple[list[int], int]] = {}
        self._running_frames: list[tuple[FrameType, Trace | None]] = []
        self._events = 0
        #: The frame, line and phase of the last line event, and its line of ``_lines``; no frame once that has ended.
        self._last_frame: FrameType | None = None
        self._last: tuple[int, Phase, list[int]] = (0, "other", [])
        #: Functions that are looked at again in another step.
        self._watched: frozenset[CodeType] = frozenset()
        #: Why nothing was traced, or not to the end; None otherwise.
        self.refused: str | None = None

    def start(self) -> None:
        """Start tracing, also of the frames that are already running (the loop itself is one of them)."""
        if sys.gettrace() is not None:
            self.refused = "a debugger or coverage tool is tracing this thread"
            return
        if dynamo.compiles_tracing():
            self.refused = "with torch 2.4 to 2.6 lines cannot be traced where something is compiled"
            return
        sys.settrace(self._called)
        for frame in frames_outwards(sys._getframe(1)):
            if owner_of(frame.f_code.co_filename) == USER:
                self._running_frames.append((frame, frame.f_trace))
                frame.f_trace, frame.f_trace_lines = self._line, True

    def stop(self) -> None:
        """Stop tracing, and restore every frame."""
        if self.refused is None and sys.gettrace() == self._called:
            sys.settrace(None)
        for frame, before in self._running_frames:
            frame.f_trace = before
        self._running_frames.clear()
        # The line that ends a step leads to what perfkit does between two steps.
        self.now_ns = (self.ended_at() or time.perf_counter_ns()) - self.own_ns
        self._close_all()

    def _close_all(self) -> None:
        self._last_frame = None
        for frame in list(self._open):
            self._close_line(frame)
        self._calls.clear()
        self._outermost.clear()

    def _end_early(self) -> None:
        sys.settrace(None)
        self.complete = False
        for frame in list(self._outermost):
            self._leave_beneath(frame)
        self._close_all()

    def start_again(self) -> None:
        """See in another step which calls come with the same arguments again."""
        if sys.gettrace() is None:
            self._watched = self._constants.functions()
            if self._watched:
                sys.settrace(self._called_again)

    def stop_again(self) -> None:
        """Stop seeing calls."""
        if sys.gettrace() == self._called_again:
            sys.settrace(None)

    @stops_at_error
    def _called_again(self, frame: FrameType, event: str, arg: Any) -> Trace | None:
        if frame.f_code not in self._watched:
            return None
        frame.f_trace_lines = False
        self._constants.enter_again(frame)
        return self._returned_again

    @stops_at_error
    def _returned_again(self, frame: FrameType, event: str, arg: Any) -> Trace | None:
        if event == "return":
            caller = user_caller(frame)
            site = (caller.f_code, line_of(caller)) if caller is not None else None
            self._constants.leave_again(frame, site, arg)
        return self._returned_again

    @stops_at_error
    def _called(self, frame: FrameType, event: str, arg: Any) -> Trace | None:
        code = frame.f_code
        if code is self._module_call:
            return self._module_called(frame)
        if does_own_work(code) and self._own_frame is None:
            self._own_frame = frame, self.now_ns
            frame.f_trace_lines = False
            return self._own_returned
        if code.co_name in _COUNTED:
            self._modules.fetches += code is self._fetch
            if code in self._backward:
                return self._differentiated(frame)
        if owner_of(code.co_filename) != USER:
            return None
        callers, caller = self._callers.setdefault(code, {}), user_caller(frame)
        site = (caller.f_code, line_of(caller)) if caller is not None else None
        if len(callers) < _MAX_CALLERS and site is not None:
            callers[site] = None
        self._constants.enter(frame, site)
        self._enter_beneath(frame, caller, self._phase())
        return self._line

    @stops_at_error
    def _own_returned(self, frame: FrameType, event: str, arg: Any) -> Trace | None:
        if event == "return" and self._own_frame is not None and self._own_frame[0] is frame:
            if self.ended_at() is None:
                self.own_ns += self.now_ns - self._own_frame[1]
            self._own_frame = None
        return self._own_returned

    def _differentiated(self, frame: FrameType) -> Trace:
        self._modules.differentiate(frame, is_grad=(is_grad := frame.f_code is self._grad))
        caller = user_caller(frame)
        site = (caller.f_code, line_of(caller)) if caller is not None else None
        self._gradients.enter(frame, site, self.now_ns, is_grad=is_grad)
        frame.f_trace_lines = False
        return self._gradients_returned

    @stops_at_error
    def _gradients_returned(self, frame: FrameType, event: str, arg: Any) -> Trace | None:
        if event == "return":
            self._gradients.leave(frame, self.now_ns)
        return self._gradients_returned

    def _enter_beneath(self, frame: FrameType, caller: FrameType | None, phase: Phase) -> None:
        """A module or a function of the user's is called: from a line that began before tracing, its time counts."""
        if caller is not None and caller not in self._open and not self._outermost:
            site = (caller.f_code, line_of(caller))
            self._outermost[frame] = (site, phase, self.now_ns)

    def _leave_beneath(self, frame: FrameType) -> None:
        if (called := self._outermost.pop(frame, None)) is not None:
            site, phase, started_ns = called
            took_ns = self.now_ns - started_ns
            self._beneath[site, phase] = self._beneath.get((site, phase), 0) + took_ns

    def _module_called(self, frame: FrameType) -> Trace | None:
        self._modules.started = True
        self._constants.spoil()
        caller = self._module_caller(frame)
        if caller is None:
            return None
        phase = self._phase()
        call = self._modules.enter(frame, self._path(caller), phase)
        if self._max_calls is not None and self._modules.entered > self._max_calls:
            self._end_early()
            return None
        if call is None:
            return None
        self._enter_beneath(frame, caller, phase)
        self._calls[frame] = call
        frame.f_trace_lines = False
        return self._module_returned

    def _module_caller(self, frame: FrameType) -> FrameType | None:
        """The user's frame that calls a module, itself or through a library (a Trainer); None inside another module."""
        for caller in frames_outwards(frame.f_back):
            if caller.f_code is self._module_call:
                return None
            if owner_of(caller.f_code.co_filename) == USER:
                return caller
        return None

    def _path(self, caller: FrameType) -> Path:
        """The user's lines that lead to a call, up to the module around them."""
        frames = takewhile(lambda frame: frame.f_code is not self._module_call, frames_outwards(caller))
        lines = ((frame.f_code, line_of(frame)) for frame in frames if owner_of(frame.f_code.co_filename) == USER)
        return tuple(islice(lines, _MAX_PATH))

    @stops_at_error
    def _module_returned(self, frame: FrameType, event: str, arg: Any) -> Trace | None:
        if event == "return" and (call := self._calls.pop(frame, None)) is not None:
            self._modules.leave(call, arg)
            self._leave_beneath(frame)
        return self._module_returned

    def _line(self, frame: FrameType, event: str, arg: Any) -> Trace | None:
        # A comprehension in one line has an event per item, often most events of a step: half the time of others.
        if frame is self._last_frame and event == "line" and self._events < self._max_events:
            began_ns = time.perf_counter_ns()
            number, phase, line = self._last
            if frame.f_lineno == number and self._phase() == phase:
                self._events += 1
                line[0] += 1
                self.own_ns += time.perf_counter_ns() - began_ns
                return self._line
        return self._moved(frame, event, arg)

    @stops_at_error
    def _moved(self, frame: FrameType, event: str, arg: Any) -> Trace | None:
        """``frame`` comes to a line, or ends."""
        self._close_line(frame)
        if event == "return":
            self._last_frame = None
            self._constants.leave(frame, arg)
            self._leave_beneath(frame)
        if event == "line":
            self._events += 1
            if self._events > self._max_events:
                self._end_early()
                return None
            phase, code, number = self._phase(), frame.f_code, frame.f_lineno
            line = self._line_of.get((phase, id(code), number))
            if line is None:
                line = self._lines.setdefault((phase, code, number), [0, 0, not self._modules.started])
                self._line_of[phase, id(code), number] = line
                self._kept.append(code)
            self._open[frame] = line, self.now_ns
            self._last_frame, self._last = frame, (number, phase, line)
        return self._line

    def _close_line(self, frame: FrameType) -> None:
        opened = self._open.pop(frame, None)
        if opened is not None:
            line, started_ns = opened
            line[0] += 1
            # The step's end is read before a few calls that are traced still.
            line[1] += max(0, self.now_ns - started_ns)

    def rows(self) -> tuple[TracedLine, ...]:
        """The traced lines, most runs first, with the loop around each; none where tracing ended early by an error."""
        if self.refused is not None:
            return ()
        loops: dict[str, dict[int, int]] = {}
        carrying: dict[str, frozenset[int]] = {}
        constants, gradients = self._constants.rows(), self._gradients.rows()
        ended = self._end_of_round(self._modules.sites)
        traced = list(self._traced(self._modules.sites, constants))
        modules = self._modules.rows([(site, phase) for phase, site, *_ in traced])
        rows = []
        for at, (phase, (code, line), runs, total_ns, before_model) in enumerate(traced):
            file = code.co_filename
            if file not in loops:
                loops[file], carrying[file] = innermost_loops(file), carrying_loops(file)
            rows.append(
                TracedLine(
                    file=file,
                    line=line,
                    function=function_name(code),
                    owner=USER,
                    phase=phase,
                    runs=runs,
                    host_ns=total_ns,
                    loop_line=loops[file].get(line),
                    loop_carries=loops[file].get(line) in carrying[file],
                    before_model=before_model and at >= ended if self._modules.started else None,
                    modules=modules.get(((code, line), phase), ()),
                    constants=constants.pop((code, line), ()),
                    gradients=gradients.pop((code, line), None),
                    callers=tuple(map(location_of, self._callers.get(code, ()))),
                )
            )
        return tuple(sorted(rows, key=lambda row: -row.runs))

    def _traced(self, *called: Iterable[Site]) -> Iterator[tuple[Phase, Site, int, int, bool]]:
        """Phase, line, runs, ns, and whether it ran before any module; lines that began before tracing come last."""
        for (phase, code, line), (runs, total_ns, before_model) in self._lines.items():
            yield phase, (code, line), runs, total_ns, bool(before_model)
        known = {(code, line) for _, code, line in self._lines}
        callers = {site for sites in called for site in sites} - known
        for (site, phase), total_ns in self._beneath.items():
            if site in callers and self._modules.phases.get(site, phase) == phase:
                callers.remove(site)
                yield phase, site, 0, total_ns, False

    def _end_of_round(self, modules: Iterable[Site]) -> int:
        """How many lines ended the round before: a step that begins after an update ends in the next round of the loop.

        The line of the loop around the first call of a module runs between the two rounds. That call may be in a
        function without the loop, as a training_step() is: then it is the loop around the call of that function.
        """
        order = {(code, line): at for at, (_, code, line) in reversed([*enumerate(self._lines)])}
        first = min((site for site in modules if site in order), key=lambda site: order[site], default=None)
        site, seen = first, set[CodeType]()
        while first is not None and site is not None and site[0] not in seen:
            code, line = site
            seen.add(code)
            begin = next((at for _, one, at in self._lines if one is code), line)
            if header := loop_around(code.co_filename, begin, line):
                ended = order.get((code, header), 0)
                return ended if ended <= order[first] else 0
            site = next(iter(self._callers.get(code, ())), None)
        return 0


def _code_of(function: Any) -> CodeType | None:
    # The step clock's hooks wrap these functions.
    return getattr(inspect.unwrap(function), "__code__", None)
