"""Calls of others between two steps."""

from __future__ import annotations

from collections.abc import Callable

from perfkit.record.clock.step_clock import StepClock
from perfkit.run.rank_recording import RankRecording


def follow_steps(clock: StepClock, recording: RankRecording, what: str, follow: Callable[[int], bool | None]) -> None:
    """Call ``follow`` with the number of each step that begins, until it returns False; its time is the step's.

    An error of it is reported as one of ``what``, and it is not called again.
    """
    earlier = clock.at_close

    def at_close(step: int) -> None:
        if earlier is not None:
            earlier(step)
        try:
            if follow(step + 1) is not False:
                return
        except Exception as error:  # noqa: BLE001 - nothing of perfkit's may end training
            recording.trouble(what, error)
        clock.at_close = earlier

    clock.at_close = at_close
