"""Rows of steps.jsonl: what the clock measured of each step, with what else is known of it."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from perfkit.record.attachments import Listeners
from perfkit.record.clock.step_clock import StepClock
from perfkit.record.clock.step_sums import ClosedStep
from perfkit.record.watchers.step_memory import NOT_READ
from perfkit.run.rank_recording import RankRecording
from perfkit.run.records import Step, StepKind


class Said(NamedTuple):
    """What the program said of a step."""

    samples: int | None = None
    tokens: int | None = None
    loss: float | None = None


_NOTHING_SAID = Said()
_NO_GRAPHS = 0, 0
_NO_DYNAMO = None, None


class StepRows:
    """Makes the rows of steps that have closed, many at once, and hands them to the recording.

    What belongs to single steps lies under their numbers until then; what a step is used for (`kind`, `window`)
    only changes where no step waits for its row.
    """

    def __init__(self, clock: StepClock, recording: RankRecording, listeners: Listeners) -> None:
        self._clock = clock
        self._recording = recording
        self._listeners = listeners
        self._samples: int | None = None
        #: Step -> what the program said of it.
        self.said: dict[int, Said] = {}
        self.kind: StepKind = "timed"
        self.window: int | None = None
        #: Time of the steps that are timed, and how many the sampler saw.
        self.timed_ns = 0
        self.sampled_steps = 0

    def add(self, closed: list[ClosedStep]) -> None:
        """Make and keep the rows of these steps, the last of which has just ended."""
        listeners, said, kind, window = self._listeners, self.said, self.kind, self.window
        sizes, collections, elements = listeners.samples_from, listeners.garbage.ns, listeners.batches.elements
        graphs = listeners.compiles.take() if listeners.compiles is not None else None
        compiled = _NO_GRAPHS if graphs is not None else _NO_DYNAMO
        timed = kind == "timed"
        rows = []
        for step in closed:
            number = step.step
            if sizes:
                self._samples = sizes.pop(number, self._samples)
            words = said.pop(number, _NOTHING_SAID) if said else _NOTHING_SAID
            if graphs:
                compiled = graphs.get(number, _NO_GRAPHS)
            rows.append(
                Step(
                    step=number,
                    mode=step.mode,
                    start_ns=step.start_ns,
                    wall_ns=step.wall_ns,
                    phases_ns=step.phases_ns,
                    samples=self._samples if words.samples is None else words.samples,
                    tokens=words.tokens,
                    loss=words.loss,
                    recompiles=compiled[0],
                    compile_ns=compiled[1],
                    batch_elements=elements.pop(number, None) if elements else None,
                    gc_ns=collections.pop(number, 0) if collections else 0,
                    kind=kind,
                    window=window,
                )
            )
            if timed:
                self.timed_ns += step.wall_ns
        if timed:
            self.sampled_steps += len(closed) - (closed[0].step == 0)
        if listeners.armed is not None:
            for _ in closed:
                listeners.armed.step()
        if listeners.memory is not None:
            # Read where the last step ends, which is now, and never told of an earlier one.
            reading = listeners.memory.at_end_of(closed[-1].step)
            if reading is not NOT_READ:
                rows[-1] = msgspec.structs.replace(rows[-1], **msgspec.structs.asdict(reading))
        self._recording.add(rows, await_device=self._clock.device is not None)
        self.settle()

    def settle(self) -> None:
        """Hand on the device times that are there by now."""
        if self._clock.device is not None:
            for step, phases in self._clock.device.resolved():
                self._recording.settle(step, phases)

    def write_due(self) -> None:
        """Write what has waited long enough."""
        given_up = self._recording.write_due()
        if given_up is not None and self._clock.device is not None:
            self._clock.device.forget(given_up)
