"""The times of traced lines have the program's work only: perfkit's own, in a step and after it, is in none."""

from __future__ import annotations

import time
from pathlib import Path

from perfkit._code_owner import own_work
from perfkit.record.samplers.line_tracer import LineTracer
from perfkit.run.records import Phase

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


def test_each_item_of_a_comprehension_counts_with_its_phase_and_its_time() -> None:
    phases: list[Phase] = ["data"]

    def item(number: int) -> int:
        # The second half of it belongs to another phase, as a loop over batches in a comprehension may.
        phases[0] = "data" if number < 50 else "forward"
        time.sleep(0.0005)
        return number

    tracer = LineTracer(lambda: phases[0])

    tracer.start()
    taken = [len(range(item(number))) for number in range(100)]
    untraced = [length + 1 for length in range(1000)]
    tracer.stop()

    assert (len(taken), len(untraced)) == (100, 1000)
    # Before Python 3.12 a comprehension is a function of its own, which another line of the same number calls.
    of_items = [row for row in tracer.rows() if row.line == line_of("taken = ")]
    for phase in ("data", "forward"):
        assert 49 <= sum(row.runs for row in of_items if row.phase == phase) <= 54
    assert sum(row.host_ns for row in of_items if row.phase == "forward") >= 0.4 * 100 * 0.0005e9
    assert 1000 <= sum(row.runs for row in tracer.rows() if row.line == line_of("untraced = ")) <= 1004


def line_of(text: str) -> int:
    source = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(source, 1) if line.strip().startswith(text))
