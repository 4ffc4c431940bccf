"""The times of traced lines have the program's work only: perfkit's own, in a step and after it, is in none."""

from __future__ import annotations

import time

from perfkit._code_owner import own_work
from perfkit.record.samplers.line_tracer import LineTracer

#: Far more than the few µs that the rest of a traced line takes.
WORK_S = 0.05


@own_work
def look_at_inputs() -> None:
    """Stands for what perfkit does before a call of the program's model."""
    time.sleep(WORK_S)


@own_work
def end(ended: list[int], tracer: LineTracer) -> None:
    """The step ends, and perfkit works before it stops the trace."""
    ended.append(time.perf_counter_ns())
    time.sleep(WORK_S)
    tracer.stop()


def test_perfkits_work_below_a_line_is_not_the_lines() -> None:
    tracer = LineTracer(lambda: "forward")

    tracer.start()
    look_at_inputs()
    time.sleep(WORK_S)
    tracer.stop()

    own, program, _ = sorted(tracer.rows(), key=lambda row: row.line)
    assert own.host_ns < WORK_S * 1e9 / 2
    assert program.host_ns >= WORK_S * 1e9


def test_the_last_line_ends_with_its_step() -> None:
    ended: list[int] = []
    tracer = LineTracer(lambda: "forward", ended_at=lambda: ended[0] if ended else None)

    tracer.start()
    end(ended, tracer)

    assert max(row.host_ns for row in tracer.rows()) < WORK_S * 1e9 / 2
