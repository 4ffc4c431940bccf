"""Rows of steps.jsonl: the clock's times of each step, with what else is known about the step."""

from __future__ import annotations

from typing import Any

import msgspec

from perfkit.record.attachments import Attachments
from perfkit.record.clock.step_clock import StepClock
from perfkit.record.clock.step_sums import ClosedStep
from perfkit.run.rank_recording import RankRecording
from perfkit.run.records import Step, StepKind

_NOTHING_LOGGED: dict[str, Any] = {}
_NOTHING_CALLED = None, None
_NO_GRAPHS = 0, 0
_NO_DYNAMO = None, None


class StepRows:
    """Makes the rows of steps that have closed, many at once, and hands them to the recording.

    Values of single steps wait under the step's number. `kind` and `window` change only while no step waits for its
    row.
    """

    def __init__(self, clock: StepClock, recording: RankRecording, attachments: Attachments) -> None:
        self._clock = clock
        self._recording = recording
        self._attachments = attachments
        self._samples: int | None = None
        #: Step -> the fields of its row that the program logged.
        self.logged: dict[int, dict[str, Any]] = {}
        self.kind: StepKind = "timed"
        self.window: int | None = None
        #: Time of the timed steps, and the number of sampled steps.
        self.timed_ns = 0
        self.sampled_steps = 0

    def add(self, closed: list[ClosedStep]) -> None:
        """Make and keep the rows of these steps, the last of which has just ended."""
        attachments, logged, kind, window = self._attachments, self.logged, self.kind, self.window
        sizes, elements, calls = attachments.samples_from, attachments.batches.elements, attachments.batches.calls
        collections = attachments.garbage.take(closed[-1].step + 1)
        waits, waited = attachments.waits, attachments.waits.take(closed[-1].step + 1)
        graphs = attachments.compiles.take()
        compiled = _NO_GRAPHS if graphs is not None else _NO_DYNAMO
        timed = kind == "timed"
        rows = []
        for step in closed:
            number = step.step
            if sizes:
                self._samples = sizes.pop(number, self._samples)
            values = logged.pop(number, _NOTHING_LOGGED) if logged else _NOTHING_LOGGED
            batch = elements.pop(number, None) if elements else None
            work = calls.pop(number, _NOTHING_CALLED) if calls else _NOTHING_CALLED
            if graphs:
                compiled = graphs.get(number, _NO_GRAPHS)
            rows.append(
                Step(
                    step=number,
                    mode=step.mode,
                    start_ns=step.start_ns,
                    wall_ns=step.wall_ns,
                    thread_ns=step.thread_ns,
                    phases_ns=step.phases_ns,
                    samples=values.get("samples", self._samples),
                    tokens=values.get("tokens"),
                    loss=values.get("loss"),
                    recompiles=compiled[0],
                    compile_ns=compiled[1],
                    batch_elements=batch,
                    model_calls=work[0] if batch is None else None,
                    input_elements=work[1] if batch is None else None,
                    gc_ns=collections.get(number, 0) if collections else 0,
                    kind=kind,
                    window=window,
                    waited_phases_ns=waits.of(number, step.phases_ns, waited) if waited is not None else None,
                )
            )
            if timed:
                self.timed_ns += step.wall_ns
        if timed:
            self.sampled_steps += len(closed) - (closed[0].step == 0)
        if attachments.armed is not None:
            for _ in closed:
                attachments.armed.step()
        # Read where the last step ends, which is now.
        reading = attachments.memory.at_end_of(closed[-1].step)
        if reading:
            rows[-1] = msgspec.structs.replace(rows[-1], **reading)
        self._recording.add(rows, await_device=self._clock.device is not None)
        self.settle()

    def settle(self) -> None:
        """Pass on the device times that are available by now."""
        if self._clock.device is not None:
            for step, phases in self._clock.device.resolved():
                self._recording.settle(step, phases)

    def write_due(self) -> None:
        """Write the rows that are due."""
        given_up = self._recording.write_due()
        if given_up is not None and self._clock.device is not None:
            self._clock.device.forget(given_up)
