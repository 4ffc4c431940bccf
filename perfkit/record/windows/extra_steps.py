"""The extra steps, once per run: one is traced by line, in two ops are counted, three are the dry run for syncs.

Where memory is asked for, its steps are among them. If the step that is traced takes long, another one is traced.

They come after the first window or, if no window will come, after a few steps. They are slower than others and are
marked in steps.jsonl, so that no timing includes them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from perfkit.ranges import dynamo
from perfkit.record.other_devices import trained_on
from perfkit.record.samplers.constant_ops import ConstantOpLog
from perfkit.record.samplers.flop_counter import FlopCounter
from perfkit.record.samplers.line_tracer import LineTracer
from perfkit.record.samplers.op_inputs import OpInputs
from perfkit.record.watchers.compilations import compiled_graphs
from perfkit.record.windows import memory_steps
from perfkit.record.windows.memory_steps import MemoryStepsRecorder
from perfkit.record.windows.model_ranges import trained_modules
from perfkit.run.records import (
    ConstantOps,
    Phase,
    RareStep,
    RebuiltBuffer,
    RepeatedOps,
    StepFlops,
    StepKind,
    Syncs,
    TracedLine,
    UnreadResults,
)
from perfkit.syncs import SyncDetector, detect_syncs

#: Steps of a kind, where it has several. Ops: the first is compared with the second. Dry run: the first is not counted.
#: What it begins with was computed before it, and is on no device, such as the loss that is read after the update; and
#: it has set-up. Of the other two, what only one has is rare.
_STEPS: dict[StepKind, int] = {"ops": 2, "memory": memory_steps.STEPS, "dry": 3}


#: A step that takes at least this many times the typical one, without the time of tracing, does what others do not (an
#: evaluation), or is Python, which tracing slows all the same: another one is traced, and the shorter one is kept.
_MUCH_LONGER = 5.0
_TRACES = 2


class ExtraSteps:
    """Runs the extra steps one after the other; `advance` returns what the coming step is.

    ``fits`` is called with a step and a number of steps: whether those may be extra steps. ``ended_at`` returns when
    the step ended, between two steps. ``memory`` records the steps for memory, None: they are not asked for.
    """

    def __init__(
        self,
        *,
        phase: Callable[[], Phase],
        optimizers: list[Any],
        dry: Callable[[], bool],
        fits: Callable[[int, int], bool],
        note: Callable[[str], None],
        ended_at: Callable[[], int | None] = lambda: None,
        memory: MemoryStepsRecorder | None = None,
    ) -> None:
        #: Whether `advance` is called from now on.
        self.begun = False
        self._new_tracer = partial(LineTracer, phase, ended_at=ended_at)
        self._tracer = self._new_tracer()
        #: The time of each step that was traced by line, its number and lines; whether another one is to be traced.
        self._traces: list[tuple[int, int, LineTracer]] = []
        self._step = 0
        self._traces_again = False
        self._counter = FlopCounter(phase)
        self._constants = ConstantOpLog(phase)
        #: Operations of one step; None until they were counted.
        self.flops: StepFlops | None = None
        self._optimizers = optimizers
        self._note = note
        self._detector: SyncDetector | None = None
        self._current: StepKind | None = None
        self._remaining = 0
        self._dry = dry
        self._fits = fits
        self._memory = memory
        self._todo: list[StepKind] = ["lines", "ops", "memory", "dry"]
        if memory is None:
            self._todo.remove("memory")

    @property
    def done(self) -> bool:
        """Whether all of them are over."""
        return not self._todo and self._current is None

    def add(self, wall_ns: int, typical_ns: float) -> None:
        """A step that is no ordinary one has ended after this time; an ordinary one takes ``typical_ns``."""
        if self._current == "lines":
            wall_ns -= self._tracer.own_ns
            self._traces.append((wall_ns, self._step, self._tracer))
            self._traces_again = wall_ns > _MUCH_LONGER * typical_ns > 0 and len(self._traces) < _TRACES

    def advance(self, step: int) -> StepKind | None:
        """Step ``step`` begins; returns what it is, None for an ordinary step."""
        if self._current is not None:
            self._remaining -= 1
            if self._current == "dry" and self._detector is not None:
                if self._remaining == _STEPS["dry"] - 1:
                    self._detector.count_from_here()
                else:
                    self._detector.step()
            elif self._current == "memory" and self._memory is not None and self._remaining:
                self._memory.advance()
            elif self._current == "ops" and self._remaining:
                self._end_count()
                self.flops = self._counter.result(step - 1)
                self._constants.start()
            if self._remaining:
                return self._current
            self.close()
        self._step = step
        while self._todo and self._current is None and self._fits(step, _STEPS.get(self._todo[0], 1)):
            kind = self._todo.pop(0)
            if kind == "dry" and not self._dry():
                continue
            self._remaining = _STEPS.get(kind, 1)
            if kind == "memory" and self._memory is not None:
                problem = self._memory.begin(step)
            else:
                problem = {"lines": self._trace, "ops": self._count}.get(kind, self._run_dry)()
            if problem is None:
                self._current = kind
            elif kind == "ops":
                self.flops = StepFlops(step=step, problem=problem)
            else:
                self._note(problem)
        return self._current

    def _trace(self) -> str | None:
        if self._traces:
            self._tracer = self._new_tracer()
        self._tracer.start()
        return self._not_traced()

    def _not_traced(self) -> str | None:
        return f"lines were not traced: {self._tracer.refused}" if self._tracer.refused is not None else None

    def _count(self) -> str | None:
        if compiled_graphs():
            return "the program compiles graphs, whose ops cannot be seen"
        self._counter.start()
        self._constants.start()
        self._tracer.start_again()
        return None

    def _end_count(self) -> None:
        """The first of the counted steps is over."""
        self._tracer.stop_again()
        self._constants.stop()
        self._counter.stop()

    def _run_dry(self) -> str | None:
        if not self._optimizers:
            return (
                "syncs were not detected: no optimizer has stepped, so no model is known; "
                "use perfkit.detect_syncs(device_of=[model]) in the program"
            )
        if kinds := trained_on(self._optimizers):
            return f"syncs were not detected: the model is on {', '.join(kinds)}, and a dry run needs it on the CPU"
        if dynamo.runs_between_graphs():
            return "syncs were not detected: the step of the optimizer is compiled, and a dry run needs it uncompiled"
        detector = detect_syncs(mode="dry", device_of=[*trained_modules(self._optimizers), *self._optimizers])
        detector.start()
        self._detector = detector
        from perfkit.syncs.dry_run.op_table import borrowed_table  # imports torch

        if (borrowed := borrowed_table()) is not None:
            self._note(borrowed)
        return None

    def close(self) -> None:
        """End the current extra step and restore everything."""
        ending, self._current = self._current, None
        if ending == "lines":
            self._tracer.stop()
            if (problem := self._not_traced()) is not None:
                self._note(problem)
            elif self._traces_again:
                self._todo.insert(0, "lines")
            self._tracer = min(self._traces, key=lambda trace: trace[0], default=(0, 0, self._tracer))[-1]
        elif ending == "ops":
            self._end_count()
        elif ending == "memory" and self._memory is not None:
            self._memory.end(whole=not self._remaining)
        elif ending == "dry" and self._detector is not None:
            self._detector.stop()

    @property
    def lines(self) -> tuple[TracedLine, ...]:
        """The lines of the traced step."""
        return self._tracer.rows()

    @property
    def rare_step(self) -> RareStep | None:
        """The lines of the step that took much longer than the other one that was traced; None: none did."""
        if len(self._traces) < _TRACES or self._current == "lines":
            return None
        (shorter_ns, _, _), (longer_ns, step, tracer) = sorted(self._traces, key=lambda trace: trace[0])
        if longer_ns < _MUCH_LONGER * shorter_ns:
            return None  # Python, which tracing slows
        return RareStep(step=step, lines=tracer.rows(), complete=tracer.complete)

    @property
    def reads_padding(self) -> bool:
        """Whether a module of the traced step read rows that all end in padding."""
        return any(call.padded_ns for row in self.lines for call in row.modules)

    @property
    def constant_ops(self) -> tuple[ConstantOps, ...]:
        """The lines below which ops compute the same in each step."""
        return self._constants.rows()

    @property
    def rebuilt_buffers(self) -> tuple[RebuiltBuffer, ...]:
        """The lines that copy a buffer to add to it."""
        return self._constants.buffers.rows()

    @property
    def repeated_ops(self) -> tuple[RepeatedOps, ...]:
        """The line below which ops compute the same several times in a step."""
        return self._constants.repeated.rows()

    @property
    def unread_results(self) -> tuple[UnreadResults, ...]:
        """The lines below which ops compute what nothing reads."""
        return self._constants.unread.rows()

    @property
    def inputs(self) -> OpInputs:
        """What went into the ops of a step."""
        return self._constants.inputs

    @property
    def syncs(self) -> Syncs | None:
        """The syncs of the dry run; None where there was none."""
        return self._detector.to_record() if self._detector is not None else None
