"""A diagnosis like the demo's, built by hand, and a console that writes into a string."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from perfkit.diagnosis import Diagnosis, Figures
from perfkit.findings import Evidence, Finding
from perfkit.measures.results.steps import StepBreakdown
from perfkit.run.records import Phases

MS = 1_000_000


@pytest.fixture
def written() -> Callable[..., str]:
    """Call a reporter with a console of this width; what it wrote."""

    def write(reporter: Any, answer: Any, width: int = 80, **options: Any) -> str:
        file = io.StringIO()
        reporter(answer, Console(file=file, width=width), **options)
        return file.getvalue()

    return write


@pytest.fixture
def diagnosis() -> Diagnosis:
    step = StepBreakdown(
        steps=40,
        wall_ns=80 * MS,
        median_ns=80 * MS,
        p10_ns=78 * MS,
        p90_ns=83 * MS,
        phases_ns=Phases(data=45 * MS, forward=20 * MS, backward=12 * MS, optimizer=3 * MS),
        source="steps.jsonl, 40 steps",
    )
    waiting = Finding(
        rule="input-bound",
        severity="critical",
        message="Waiting for data takes 45.0 ms of the 80.0 ms step: Reviews.__getitem__ runs in the training process.",
        advice="Do the work of Reviews.__getitem__ once, ahead of training, or beside it: DataLoader(num_workers=4).",
        confidence="high",
        evidence=(Evidence("waiting for data", 45.0, "ms", "steps.jsonl, 40 steps"),),
        file="train.py",
        line=31,
        function="Reviews.__getitem__",
        lost_ns=45 * MS,
        gain_low_ns=20 * MS,
        gain_high_ns=45 * MS,
    )
    loop = Finding(
        rule="many-small-ops",
        severity="warning",
        message="A loop runs 100 times per step over 3 small ops (select mul add): 12.0 ms, backward included.",
        advice="Replace the loop by one call over the whole tensor (batched matmul, reduction with dim=, cumsum).",
        confidence="medium",
        file="model.py",
        line=11,
        function="mix",
        lost_ns=12 * MS,
        gain_low_ns=0,
        gain_high_ns=12 * MS,
    )
    sync = Finding(
        rule="sync-in-step",
        severity="warning",
        message="item() waits for the device once per step.",
        advice="Keep the value on the device and read it rarely.",
        confidence="high",
        evidence=(Evidence("blocked time", None, "ms", "on a CPU there is no device to wait for"),),
        file="train.py",
        line=60,
        function="train",
    )
    return Diagnosis(
        source="runs/train",
        verdict="A step takes 80.0 ms, most of it waiting for data (56%).",
        step=step,
        phases=step.phases_ns,
        findings=(waiting, loop, sync),
        figures=Figures(wall_ns=80 * MS),
        missing=("no window was recorded",),
    )
