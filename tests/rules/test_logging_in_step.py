"""logging-in-step: logging in every step, and at the end of an epoch only where it is a quarter of the time."""

from __future__ import annotations

from typing import Any

import msgspec

from perfkit._location import Location
from perfkit.findings import Finding
from perfkit.rules.python import logging_in_step
from perfkit.run.records import LineRow, Lines, ModuleCalls, Phase, RareStep, StepInterval, TracedLine

MS = 1_000_000


def test_logging_in_every_step_is_found_at_its_line(build: Any) -> None:
    step, mean = build.step(20, other=10), build.mean_step(20, other=10)
    work = build.work("logging", 8, function="draw", within="torch.utils.tensorboard > numpy")

    [finding] = build.findings(logging_in_step, step, mean, work)

    assert (finding.spent.line, finding.spent.function) == (12, "draw")
    assert (finding.saving_low_ns, finding.cost_ns) == (6 * MS, 8 * MS)


def test_the_line_that_calls_a_logging_function_in_the_step_is_the_one_to_change(build: Any) -> None:
    step, mean = build.step(20, other=10), build.mean_step(20, other=10)
    work = build.work("logging", 8, called_from=Location(file="train.py", line=40, function="f"))
    loop = build.loop("train.py", line=38, loop_line=30, runs=1)

    [finding] = build.findings(logging_in_step, step, mean, work, loop)
    [outside] = build.findings(logging_in_step, step, mean, work)

    assert (finding.spent.line, finding.change.line) == (12, 40)
    assert outside.change is None


def test_a_few_long_steps_are_reported_only_from_a_quarter_on(build: Any) -> None:
    step = build.step(20, other=1)
    few = (step, build.mean_step(23, other=4), build.work("logging", 3))
    much = (step, build.mean_step(40, other=21), build.work("logging", 20))

    assert not build.findings(logging_in_step, *few)
    assert [finding.severity for finding in build.findings(logging_in_step, *much)] == ["critical"]


def test_the_phase_of_an_integration_counts_without_samples(build: Any) -> None:
    step, mean = build.step(20, forward=10, logging=8), build.mean_step(20, forward=10, logging=8)

    [finding] = build.findings(logging_in_step, step, mean)

    assert (finding.cost_ns, finding.spent) == (8 * MS, None)


def test_little_logging_and_missing_measures_are_not_reported(build: Any) -> None:
    step, mean = build.step(20, forward=20), build.mean_step(20, forward=20)

    assert not build.findings(logging_in_step, step, mean, build.work("logging", 0.9))
    assert not build.findings(logging_in_step)


def sampled(line: int, function: str, phase: Phase, samples: int, **more: Any) -> LineRow:
    return LineRow(
        file="train.py", line=line, function=function, owner="user", phase=phase, samples=samples,
        host_ns=samples * MS // 10, within={"": samples}, **more,
    )  # fmt: skip


def test_values_that_only_the_host_reads_are_found_in_the_function_that_computes_them(build: Any) -> None:
    step, mean = build.step(20, other=10, backward=8), build.mean_step(20, other=10, backward=8)
    call = Location(file="train.py", line=43, function="Monitor.on_step")
    train = Location(file="train.py", line=90, function="main")
    lines = Lines(
        period_ns=MS,
        steps=40,
        rows=(
            sampled(33, "Monitor.summarise", "other", 60, called_from=call),
            sampled(34, "Monitor.summarise", "other", 20, called_from=call),
            sampled(43, "Monitor.on_step", "other", 5, called_from=train),
            sampled(90, "main", "backward", 80),
        ),
        intervals=(StepInterval(file="train.py", line=43, function="Monitor.on_step", owner="user", set_at=train.at),),
    )

    def findings(*read: int, inputs: tuple[Location, ...] = ()) -> list[Finding]:
        places = tuple(Location(file="train.py", line=line) for line in read)
        known = msgspec.structs.replace(lines, host_reads=places, training_inputs=inputs)
        return list(build.findings(logging_in_step, step, mean, known))

    [finding] = findings(33, 34)

    assert finding.spent is not None
    assert finding.change is not None
    assert (finding.spent.line, finding.change.line, finding.cost_ns) == (33, 90, 8 * MS)
    assert finding.message.startswith("Monitor.summarise computes values that only the host reads: 8.0 ms")
    # The loss, in the function that trains, and what training reads are no log.
    assert findings(90) == []
    assert findings(33, 34, inputs=(call,)) == []
    assert findings() == []
    # A rollout reads the answers of its policy, and only in the steps that have one.
    asks = ModuleCalls(module="Policy", calls=50, host_ns=MS, builds_graph=False)
    row = TracedLine(
        file="train.py", line=32, function="Monitor.summarise", owner="user", phase="other", runs=50, host_ns=MS,
        modules=(asks,),
    )  # fmt: skip
    rollout = msgspec.structs.replace(lines, rare_step=RareStep(step=40, lines=(row,)))
    lines = rollout
    assert findings(33, 34) == []
    lines = msgspec.structs.replace(rollout, traced=(msgspec.structs.replace(row, modules=()),))
    assert len(findings(33, 34)) == 1
