"""loop-over-samples: a model that is called once per sample, and no other loop over modules."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perfkit._location import Location
from perfkit.findings import Finding
from perfkit.ledger.ledger import Ledger
from perfkit.ledger.rows import LedgerRow
from perfkit.ledger.step_budget import StepBudget
from perfkit.measures.results.measurements import Measurements
from perfkit.measures.results.work import OpShares, OpWorkTime, StepWork
from perfkit.rules.python import loop_over_samples
from perfkit.run.records import Lines, ModuleCalls, StepBoundary, TracedLine

MS = 1_000_000


def line(ms: float, phase: Any = "forward", **fields: Any) -> TracedLine:
    calls = {"module": "Net", "calls": 32, "host_ns": round(ms * MS), "sliced": True, **fields}
    return TracedLine(
        file="train.py",
        line=38,
        function="scores_of",
        owner="user",
        phase=phase,
        runs=32,
        host_ns=round(ms * MS),
        modules=(ModuleCalls(**calls),),
    )


def found(build: Any, *traced: TracedLine) -> list[Finding]:
    step = build.step(40, forward=16, backward=16, other=8)
    return build.findings(loop_over_samples, step, Lines(period_ns=MS, steps=40, traced=traced))


@pytest.mark.parametrize(("late_ms", "most_ms"), [(600, 11.5), (400, 10)], ids=["the host", "the device"])
def test_a_part_of_the_host_saves_more_than_its_time_where_the_step_waits_for_the_host(
    build: Any, late_ms: int, most_ms: float
) -> None:
    device = build.device(1000, compute=1000 - late_ms, causes={"python": late_ms})
    step = StepBudget.from_measurements(Measurements("run", build.traced_step(100), device))

    assert step is not None
    assert step.maximum_saving(10 * MS) == most_ms * MS


def test_a_model_called_per_sample_is_found_with_its_backward(build: Any) -> None:
    [finding] = found(build, line(20))

    assert (finding.spent.line, finding.spent.function) == (38, "scores_of")
    assert finding.cost_ns == 31 * MS  # all rounds but one
    assert finding.saving_low_ns == 20.15 * MS
    assert "Net is called 32 times per step" in finding.message


def test_recurrences_few_calls_and_loaders_are_not_reported(build: Any) -> None:
    assert not found(build, line(20, sliced=False))
    assert not found(build, line(20, calls=7))
    assert not found(build, line(20, phase="data"))
    assert not build.findings(loop_over_samples, build.step(40))
    assert not build.findings(loop_over_samples)


def test_the_look_ups_of_a_decoder_with_a_state_cost_their_own_time_and_not_the_loops(build: Any) -> None:
    look_up, state = line(1), line(19, module="GRUCell", sliced=False)
    head = line(4, module="Linear", sliced=False)

    assert not found(build, *(msgspec.structs.replace(one, loop_line=37) for one in (look_up, state)))
    [tower] = found(build, *(msgspec.structs.replace(one, loop_line=37) for one in (line(16), head)))
    assert tower.cost_ns == 31 * MS  # that of the whole loop


def test_in_the_line_of_a_recurrence_only_the_look_ups_of_its_samples_are_counted(build: Any) -> None:
    # In the forward of a cell, outside of the loop: self.inputs(x) + self.recurrent(h).
    look_up, state = line(3).modules[0], line(12, module="ParametrizedLinear", sliced=False).modules[0]
    cell = msgspec.structs.replace(line(15), modules=(look_up, state))

    [finding] = found(build, cell)

    assert finding.cost_ns == pytest.approx(2 * 3 * MS, rel=0.05)


def test_samples_of_a_list_are_found_and_all_rounds_but_that_of_one_item_are_saved(build: Any) -> None:
    [finding] = found(build, line(20, sliced=False, items=16))

    assert finding.cost_ns == 30 * MS
    assert not found(build, line(20, sliced=False, items=7))


def calls_as_steps(build: Any, *traced: TracedLine, sliced: float | None, in_ops: float) -> list[Finding]:
    by = StepBoundary(by="module", module="Encoder", called_at=Location(file="rag.py", line=30), sliced=sliced)
    op = OpWorkTime(op="aten::mm", phase="other", ns=MS, calls=1, ops=1, at=by.called_at)
    work = StepWork(source="stacks-0", step_ns=MS, rows=(op,))
    facts = (build.step(1, other=1), build.rank(step_boundary=by), Lines(period_ns=MS, steps=40, traced=traced))
    return build.findings(loop_over_samples, *facts, work, OpShares(shares={"other": in_ops}))


def test_calls_that_go_through_a_tensor_part_by_part_are_found_where_they_compute_little(build: Any) -> None:
    [finding] = calls_as_steps(build, sliced=1.0, in_ops=0.3)

    assert finding.spent is not None
    assert finding.spent.line == 30
    assert finding.saving_low_ns == pytest.approx(0.65 * 0.7 * MS, rel=0.01)
    assert "Encoder is called with one part of the same tensors after the other: 700 µs" in finding.message


def test_calls_as_steps_with_the_samples_of_a_list_name_its_loop(build: Any) -> None:
    calls = ModuleCalls(module="Encoder", calls=1, host_ns=MS, items=16)
    row = TracedLine(
        file="rag.py",
        line=30,
        function="ask",
        owner="user",
        phase="other",
        runs=1,
        host_ns=MS,
        loop_line=28,
        modules=(calls,),
    )

    [finding] = calls_as_steps(build, row, sliced=0.0, in_ops=0.3)

    assert finding.spent is not None
    assert finding.change is not None
    assert (finding.spent.line, finding.change.line) == (30, 28)
    assert "Encoder is called with one sample after the other: 700 µs" in finding.message


def test_a_function_between_the_loop_and_the_model_is_left_as_it_is(build: Any) -> None:
    calls = ModuleCalls(module="Encoder", calls=1, host_ns=MS, items=16)
    caller = Location(file="rag.py", line=40, function="ingest")
    embeds = TracedLine(
        file="rag.py",
        line=30,
        function="embed",
        owner="user",
        phase="other",
        runs=16,
        host_ns=MS,
        modules=(calls,),
        callers=(caller,),
    )
    ingests = TracedLine(
        file="rag.py", line=40, function="ingest", owner="user", phase="other", runs=16, host_ns=MS, loop_line=39
    )

    [finding] = calls_as_steps(build, embeds, ingests, sliced=0.0, in_ops=0.3)

    assert finding.spent is not None
    assert finding.change is not None
    assert (finding.spent.line, finding.change.line) == (30, 39)


def test_calls_with_tensors_of_their_own_or_with_much_to_compute_are_not(build: Any) -> None:
    assert not calls_as_steps(build, sliced=0.2, in_ops=0.3)
    assert not calls_as_steps(build, sliced=None, in_ops=0.3)
    assert not calls_as_steps(build, sliced=1.0, in_ops=0.8)


def test_small_products_that_a_batch_would_make_faster_are_no_computing_at_the_limit(build: Any) -> None:
    def rows(limit: float) -> Ledger:
        place: dict[str, Any] = {"name": "aten::mm", "phase": "other", "count": 4.0}
        return Ledger(
            wall_ns=MS,
            per="step",
            basis="training thread",
            rows=(
                LedgerRow(owner="computing", ns=600_000, limit_ns=round(600_000 * limit), **place),
                LedgerRow(owner="op overhead", ns=200_000, **place),
                LedgerRow(owner="computing", name="own::op", ns=200_000, phase="other"),
            ),
        )

    def found(limit: float) -> list[Finding]:
        by = StepBoundary(by="module", module="Encoder", called_at=Location(file="rag.py", line=30), items=24)
        results = Measurements("runs/x", build.step(1, other=1), build.rank(step_boundary=by))
        step = StepBudget.from_measurements(results)
        assert step is not None
        return list(loop_over_samples.check(step, Lines(period_ns=MS, steps=40), rows(limit)))

    assert len(found(0.1)) == 1
    assert found(0.9) == []
