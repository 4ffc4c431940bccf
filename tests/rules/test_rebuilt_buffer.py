"""rebuilt-buffer: a memory is copied as a whole in each step, to add a row to it."""

from __future__ import annotations

from typing import Any

from perfkit._location import Location
from perfkit.measures.results.work import OpWorkTime, StepWork
from perfkit.rules.ops import rebuilt_buffer
from perfkit.run.records import Lines, RebuiltBuffer

MS = 1_000_000
PUSH, OTHER = (Location(file="train.py", line=line, function="push", owner="user") for line in (70, 90))


def found(build: Any, ms: int, library: str | None = None) -> list[Any]:
    rows = (
        OpWorkTime(op="aten::cat", phase="forward", ns=ms * MS, calls=4, ops=4, at=PUSH),
        OpWorkTime(op="aten::cat", phase="forward", ns=30 * MS, calls=1, ops=1, at=OTHER),
    )
    buffer = RebuiltBuffer(
        file="train.py", line=70, function="push", owner="user", calls=4, elements=400_000, added=40, library=library
    )
    lines = Lines(period_ns=MS, steps=40, rebuilt_buffers=(buffer,))
    work = StepWork(source="stacks-0", step_ns=80 * MS, rows=rows)
    return list(build.findings(rebuilt_buffer, build.step(40, forward=40), lines, work))


def test_the_copies_at_its_line_are_the_cost(build: Any) -> None:
    [finding] = found(build, 20)

    # A recorded step is twice as long as an ordinary one.
    assert (finding.cost_ns, finding.spent.line) == (10 * MS, 70)
    assert finding.saving_low_ns == 7 * MS
    assert finding.message.startswith("torch.cat copies a buffer of 100,000 elements 4 times per step, of which")


def test_copies_that_take_little_are_no_finding(build: Any) -> None:
    assert found(build, 3) == []


def test_the_cache_of_transformers_is_information_with_its_own_advice(build: Any) -> None:
    [finding] = found(build, 20, "transformers")

    assert (finding.severity, finding.saving_low_ns, finding.saving_high_ns) == ("info", 0, 8 * MS)
    assert "StaticCache" in finding.advice


def test_what_another_library_joins_is_not_reported(build: Any) -> None:
    assert found(build, 20, "some_models") == []
