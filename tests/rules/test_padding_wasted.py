"""padding-wasted: rows of an input that all end in padding; other inputs are not reported."""

from __future__ import annotations

from typing import Any

import msgspec
import torch
from torch import nn

from perfkit._location import Location
from perfkit.record.samplers.line_tracer import LineTracer
from perfkit.rules.data import padding_wasted
from perfkit.run.records import PADDING, Compilation, Lines, ModuleCalls, TracedLine

MS = 1_000_000


def lines(padded_ns: int | None, module: str = "Decoder") -> Lines:
    """A decoder that takes the whole of a forward of 40 ms."""
    calls = ModuleCalls(module=module, calls=1, host_ns=40 * MS, padded_ns=padded_ns)
    row = TracedLine(
        file="train.py",
        line=9,
        function="main",
        owner="user",
        phase="forward",
        runs=1,
        host_ns=40 * MS,
        modules=(calls,),
    )
    return Lines(period_ns=MS, steps=40, traced=(row,))


def test_padding_costs_its_share_of_the_call_and_of_the_backward(build: Any) -> None:
    step = build.step(100, forward=40, backward=50, optimizer=10)

    [finding] = build.findings(padding_wasted, step, lines(padded_ns=30 * MS))

    assert finding.cost_ns == round(0.75 * 90 * MS)
    assert finding.spent.line == 9


def test_a_call_without_padding_is_no_finding(build: Any) -> None:
    step = build.step(100, forward=40, backward=50, optimizer=10)

    assert build.findings(padding_wasted, step, lines(padded_ns=None)) == []
    assert build.findings(padding_wasted, step, lines(padded_ns=1 * MS)) == []
    # Numbers of segments end in equal ones too, and an embedding alone may have them.
    assert build.findings(padding_wasted, step, lines(padded_ns=30 * MS, module="Embedding")) == []


def padded_share(rows: torch.Tensor) -> float | None:
    """The share of a call's time that the recorder puts down to padding."""
    model = nn.Embedding(100, 4)
    tracer = LineTracer(lambda: "forward")
    tracer.start()
    model(rows)
    tracer.stop()
    [calls] = [calls for row in tracer.rows() for calls in row.modules]
    return None if calls.padded_ns is None else calls.padded_ns / calls.host_ns


def test_the_columns_that_no_row_uses_are_padding() -> None:
    rows = torch.arange(1, 41).reshape(4, 10)
    rows[:, 6:] = 0
    rows[0, 3:] = 0
    equal = torch.zeros(4, 10, dtype=torch.int64)

    assert abs((padded_share(rows) or 0) - 0.4) < 0.01
    assert padded_share(torch.arange(40).reshape(4, 10)) == 0
    assert padded_share(equal) == 0
    assert padded_share(rows[:1]) is None


def test_the_line_that_pads_is_to_be_edited(build: Any) -> None:
    step = build.step(100, forward=40, backward=50, optimizer=10)
    pads = Location(file="data.py", line=15, function="collate")

    [finding] = build.findings(padding_wasted, step, lines(padded_ns=30 * MS), build.rank(calls={PADDING: (pads,)}))

    assert finding.change == pads


def test_without_a_line_that_pads_the_loader_is_to_be_edited(build: Any) -> None:
    step = build.step(100, forward=40, backward=50, optimizer=10)
    made = Location(file="data.py", line=30, function="DataLoader(...)")
    rank = build.rank()
    rank = msgspec.structs.replace(rank, loaders=(msgspec.structs.replace(rank.loaders[0], created_at=made),))

    [finding] = build.findings(padding_wasted, step, lines(padded_ns=30 * MS), rank)

    assert finding.change == made


def test_in_a_program_that_compiles_equal_lengths_are_on_purpose(build: Any) -> None:
    step = build.step(100, forward=40, backward=50, optimizer=10)
    compiled = Compilation(compiled="forward", called_from=None, count=1, recompiles=0, total_ns=MS)
    rank = msgspec.structs.replace(build.rank(), compilations=(compiled,))

    [finding] = build.findings(padding_wasted, step, lines(padded_ns=30 * MS), rank)

    assert finding.severity == "info"
