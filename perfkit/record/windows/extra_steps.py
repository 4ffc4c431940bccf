"""Steps of their own, once per run: one traced by line, one whose operations are counted, two of the dry run.

They come after the first window, or, where no window will come, after a few steps. They are slower than
others and are marked in steps.jsonl, so that no timing holds them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perfkit.record.samplers.flop_counter import FlopCount
from perfkit.record.samplers.line_tracer import LineTracer
from perfkit.record.watchers.compilations import compiled_graphs
from perfkit.record.windows.model_ranges import trained_modules
from perfkit.run.records import Phase, StepFlops, StepKind, Syncs, TracedLine
from perfkit.syncs import SyncDetector, detect_syncs

#: Steps of the dry run: the first pays for set-up and one-off syncs, the second shows what every step has.
_DRY_STEPS = 2


class ExtraSteps:
    """Runs the extra steps one after the other; `advance` says what the coming step is."""

    def __init__(
        self, *, phase: Callable[[], Phase], optimizers: list[Any], dry: bool, note: Callable[[str], None]
    ) -> None:
        self._tracer = LineTracer(phase)
        self._count = FlopCount(phase)
        #: Operations of one step; None until they were counted.
        self.flops: StepFlops | None = None
        self._optimizers = optimizers
        self._note = note
        self._detector: SyncDetector | None = None
        self._now: StepKind | None = None
        self._left = 0
        self._todo: list[StepKind] = ["lines", "ops", "dry"] if dry else ["lines", "ops"]

    @property
    def done(self) -> bool:
        """Whether all of them are over."""
        return not self._todo and self._now is None

    def advance(self, step: int) -> StepKind | None:
        """A step has ended and ``step`` begins: what that one is, None for an ordinary step."""
        if self._now is not None:
            if self._detector is not None and self._now == "dry":
                self._detector.step()
            self._left -= 1
            if self._left > 0:
                return self._now
            if self._now == "ops":
                self._count.stop()
                self.flops = self._count.result(step - 1)
            self.close()
        begin: dict[StepKind, Callable[[], bool]] = {
            "lines": self._begin_traced,
            "ops": lambda: self._begin_counted(step),
            "dry": self._begin_dry,
        }
        while self._todo and self._now is None:
            kind = self._todo.pop(0)
            if begin[kind]():
                self._now = kind
        return self._now

    def _begin_traced(self) -> bool:
        self._left = 1
        self._tracer.start()
        if self._tracer.refused is not None:
            self._note(f"lines were not traced: {self._tracer.refused}")
        return self._tracer.refused is None

    def _begin_counted(self, step: int) -> bool:
        if compiled_graphs():
            self.flops = StepFlops(step=step, problem="the program compiles graphs, whose ops cannot be seen")
            return False
        self._left = 1
        self._count.start()
        return True

    def _begin_dry(self) -> bool:
        if not self._optimizers:
            self._note(
                "syncs were not looked for: no optimizer has stepped, so no model is known; "
                "use perfkit.detect_syncs(device_of=[model]) in the program"
            )
            return False
        self._left = _DRY_STEPS
        detector = detect_syncs(mode="dry", device_of=[*trained_modules(self._optimizers), *self._optimizers])
        detector.start()
        self._detector = detector
        return True

    def close(self) -> None:
        """End the running extra step and put everything back."""
        ending, self._now = self._now, None
        if ending == "lines":
            self._tracer.stop()
        elif ending == "ops":
            self._count.stop()
        elif ending == "dry" and self._detector is not None:
            self._detector.stop()

    @property
    def lines(self) -> tuple[TracedLine, ...]:
        """What the traced step gave."""
        return self._tracer.rows()

    @property
    def syncs(self) -> Syncs | None:
        """What the dry run gave; None where there was none."""
        return self._detector.to_record() if self._detector is not None else None
