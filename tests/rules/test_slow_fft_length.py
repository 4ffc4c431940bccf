"""slow-fft-length: the transforms of a function's lines, backward included."""

from __future__ import annotations

from typing import Any

import pytest

from perfkit._location import Location
from perfkit.measures.results.work import OpWorkTime, StepWork
from perfkit.rules.ops import slow_fft_length
from perfkit.run.records import Lines, SlowFft

MS = 1_000_000
THERE, BACK, ELSEWHERE = (
    Location(file="train.py", line=line, function=name, owner="user")
    for line, name in ((20, "mix"), (21, "mix"), (40, "spectrum"))
)


def found(build: Any, ms: int) -> list[Any]:
    engine = "autograd::engine::evaluate_function:"
    ops = [("aten::fft_rfft", THERE, ms), ("aten::fft_irfft", BACK, 2 * ms), (f"{engine} FftC2RBackward0", BACK, ms)]
    ops += [("aten::mul", BACK, 10), ("aten::fft_rfft", ELSEWHERE, 10)]
    rows = tuple(OpWorkTime(op=op, phase="forward", ns=took * MS, calls=1, ops=1, at=at) for op, at, took in ops)
    slow = tuple(
        SlowFft(file=at.file, line=at.line or 0, function="mix", owner="user", length=1999, calls=2)
        for at in (THERE, BACK)
    )
    lines = Lines(period_ns=MS, steps=40, slow_ffts=slow)
    work = StepWork(source="stacks-0", step_ns=80 * MS, rows=rows)
    return list(build.findings(slow_fft_length, build.step(40, forward=20, backward=20), lines, work))


def test_the_transforms_are_the_cost_and_the_first_line_is_to_be_edited(build: Any) -> None:
    [finding] = found(build, 8)

    # 32 ms in a recorded step that is twice as long as an ordinary one.
    assert finding.cost_ns == pytest.approx(16 * MS)
    assert (finding.spent, finding.change) == (BACK, THERE)
    assert finding.message.startswith("4 Fourier transforms per step have a length with a large prime factor (1,999)")
    assert "(2,000)" in finding.advice


def test_transforms_that_take_little_are_no_finding(build: Any) -> None:
    assert found(build, 0) == []
