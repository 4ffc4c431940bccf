"""unexpected-call-count: a call whose answer was known costs its share of its phase, and of its backward."""

from __future__ import annotations

from typing import Any

import msgspec

from perfkit._location import Location
from perfkit.findings import Finding
from perfkit.rules.python import unexpected_call_count
from perfkit.run.records import Lines, ModuleCalls, TracedLine

MS = 1_000_000


def line(number: int, phase: Any, ms: float, *modules: ModuleCalls, callers: Any = ()) -> TracedLine:
    return TracedLine(
        file="train.py",
        line=number,
        function="main",
        owner="user",
        phase=phase,
        runs=1,
        host_ns=round(ms * MS),
        modules=modules,
        callers=callers,
    )


def location(line: int) -> Location:
    return Location(file="train.py", line=line, function="main")


def calls(ms: float, again: int = 1, backward: bool = False) -> ModuleCalls:
    ns = round(ms * MS)
    return ModuleCalls(
        module="Net", calls=1, host_ns=ns, again=again, again_ns=ns if again else 0, again_backward=backward
    )


FORWARD = line(33, "forward", 20)


def found(build: Any, *traced: TracedLine) -> list[Finding]:
    step = build.step(40, forward=10, backward=20, other=10)
    return build.findings(unexpected_call_count, step, Lines(period_ns=MS, steps=40, traced=traced))


def test_a_second_forward_for_a_metric_costs_its_share_of_its_phase(build: Any) -> None:
    traced = (line(33, "forward", 20, calls(20, again=0)), line(38, "other", 16, calls(15)), line(39, "other", 4))

    [finding] = found(build, *traced)

    assert (finding.spent.line, finding.spent.function) == (38, "main")
    assert finding.cost_ns == 7.5 * MS
    assert "Net is called once more per step" in finding.message
    assert finding.saving_low_ns <= finding.cost_ns <= finding.saving_high_ns


def test_an_encoder_called_per_loss_costs_its_backward_too(build: Any) -> None:
    traced = (
        line(28, "forward", 10, calls(10, again=0)),
        line(31, "forward", 10, calls(10, backward=True)),
        line(34, "forward", 20, calls(10, backward=True)),
    )

    [finding] = found(build, *traced)

    assert finding.cost_ns == 15 * MS
    assert "called twice more per step" in finding.message


def test_lines_of_functions_that_were_called_count_once_in_the_phase(build: Any) -> None:
    inner = line(7, "other", 15, callers=(location(33), location(38)))

    [finding] = found(build, FORWARD, line(38, "other", 20, calls(15)), inner)

    assert finding.cost_ns == 7.5 * MS


def test_where_no_line_is_known_to_be_the_forwards_those_outside_known_phases_are_both(build: Any) -> None:
    [finding] = found(build, line(38, "other", 10, calls(10)), line(39, "other", 10))

    assert finding.cost_ns == 10 * MS  # half of 10 ms of the forward and of 10 ms of the rest


def test_where_a_helper_repeats_a_call_the_line_that_calls_the_helper_is_to_be_changed(build: Any) -> None:
    repeated = msgspec.structs.replace(calls(15), again_at=location(38))

    [finding] = found(build, line(7, "other", 20, repeated))

    assert finding.spent is not None
    assert finding.change is not None
    assert (finding.spent.line, finding.change.line) == (7, 38)


def test_of_a_method_that_several_lines_call_the_first_of_them_is_to_be_changed(build: Any) -> None:
    several = msgspec.structs.replace(line(7, "other", 20, calls(15)), callers=(location(38), location(41)))

    [finding] = found(build, several)

    assert finding.change == location(38)


def test_short_calls_and_calls_that_were_needed_are_not_reported(build: Any) -> None:
    assert not found(build, FORWARD, line(38, "other", 20, calls(3.9)))
    assert not found(build, line(38, "other", 20, calls(20, again=0)))
    assert not build.findings(unexpected_call_count, build.step(40))
    assert not build.findings(unexpected_call_count)
