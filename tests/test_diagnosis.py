"""The answer as data: ordered by lost time, with one sentence that says what to do first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfkit.diagnosis import Diagnosis, diagnose
from perfkit.errors import RunError
from perfkit.findings import Finding
from perfkit.measures.results.measured import Measured, TraceFacts
from perfkit.measures.results.steps import StepBreakdown
from perfkit.rules import RULES
from perfkit.rules.verdicts import compute_bound
from perfkit.run.records import Phases, Rank

MS = 1_000_000
TRACES = Path(__file__).resolve().parents[1] / "../shared/traces"
beside = pytest.mark.skipif(not TRACES.is_dir(), reason="shared traces are not beside the checkout")


def step(wall: float, **phases: float) -> StepBreakdown:
    return StepBreakdown(
        steps=40,
        wall_ns=round(wall * MS),
        median_ns=round(wall * MS),
        p10_ns=round(wall * MS),
        p90_ns=round(wall * MS),
        phases_ns=Phases(**{name: round(ms * MS) for name, ms in phases.items()}),
        source="steps.jsonl, 40 steps",
        window_ns=round(1.2 * wall * MS),
    )


def rule(rule_id: str, *lost_ms: float | None, severity: Any = "warning", follows: str | None = None) -> Any:
    """A rule that finds these lost times, whatever was measured."""

    def check(measured: Measured) -> Iterator[Finding]:
        for ms in lost_ms:
            lost = None if ms is None else round(ms * MS)
            yield Finding(
                rule=rule_id, severity=severity, message=f"{rule_id} {ms}", advice="change it", confidence="high",
                file="train.py", line=7, cost_ns=lost, saving_low_ns=0 if lost else None, saving_high_ns=lost,
                follows=follows,
            )  # fmt: skip

    return SimpleNamespace(ID=rule_id, check=check)


BUSY = Measured(source="runs/x", step=step(100, data=10, forward=60, backward=30))


def test_findings_come_by_lost_time_then_unpriced_then_for_information() -> None:
    rules = [rule("a", None, 5), rule("b", 30, severity="info"), rule("c", 20)]

    findings = diagnose(BUSY, rules=rules).findings

    assert [finding.message for finding in findings] == ["c 20", "a 5", "a None", "b 30"]


def test_the_verdict_says_what_dominates_what_to_do_first_and_what_it_gains() -> None:
    assert diagnose(BUSY, rules=[rule("a", 20, None)]).verdict == (
        "A step takes 100 ms, most of it the forward pass (60%). Start with a at train.py:7: "
        "it gains up to 20.0 ms per step (20% at most). 1 finding has no price here."
    )


@given(lost=st.integers(1, 10**12), low=st.floats(0, 1), wide=st.floats(0, 2))
def test_a_range_with_a_low_end_is_no_wider_than_half_of_what_is_lost_and_keeps_its_middle(
    lost: int, low: float, wide: float
) -> None:
    low_ns = round(low * lost)
    high_ns = low_ns + round(wide * lost)
    found = next(rule("a", lost / MS).check(BUSY))
    ranged = msgspec.structs.replace(found, cost_ns=lost, saving_low_ns=low_ns, saving_high_ns=high_ns)

    told = diagnose(BUSY, rules=[SimpleNamespace(ID="a", check=lambda _: [ranged])]).findings[0]

    assert told.saving_low_ns is not None
    assert told.saving_high_ns is not None
    if low_ns == 0 or high_ns - low_ns <= lost // 2:
        assert (told.saving_low_ns, told.saving_high_ns) == (low_ns, high_ns)
    else:
        assert told.saving_high_ns - told.saving_low_ns == lost // 2
        assert abs(told.saving_low_ns + told.saving_high_ns - low_ns - high_ns) <= 1


def test_gains_together_never_exceed_the_step() -> None:
    verdict = diagnose(BUSY, rules=[rule("a", 80), rule("b", 70)]).verdict

    assert "both together 100 ms at most" in verdict


def test_the_cost_is_told_for_the_planned_run() -> None:
    planned = Measured(source="runs/x", step=BUSY.step, planned_steps=100_000)

    verdict = diagnose(planned, rules=[rule("a", 50)]).verdict

    assert verdict.endswith("Over the planned 100,000 steps that is up to 83 min of 2.8 h.")


def test_a_healthy_run_is_told_that_there_is_nothing_to_gain() -> None:
    diagnosis = diagnose(BUSY.__class__(source="runs/x", step=step(100, data=1, forward=60, backward=39)))

    assert [finding.rule for finding in diagnosis.findings] == ["compute-bound"]
    assert diagnosis.verdict.startswith(
        "Nothing to gain here above 5%. Computing takes 99% of the 100 ms step (forward"
    )


def test_where_the_step_is_not_known_that_well_the_healthy_verdict_says_how_well() -> None:
    few = msgspec.structs.replace(step(100, forward=100), steps=4, p10_ns=80 * MS, p90_ns=120 * MS)

    assert diagnose(Measured(source="runs/x", step=few)).verdict.startswith(
        "Nothing to gain here above 16% (the step's length is known to that from 4 steps)."
    )


def test_what_a_finding_for_information_may_gain_is_not_denied() -> None:
    healthy = Measured(source="runs/x", step=step(100, forward=100))

    verdict = diagnose(healthy, rules=[rule("tuning", 12, severity="info"), compute_bound]).verdict

    assert verdict.startswith("Nothing to gain here above 12% (that may be in tuning).")


def test_the_healthy_verdict_is_silent_beside_a_priced_problem() -> None:
    diagnosis = diagnose(Measured(source="runs/x", step=step(100, data=40, forward=60)))

    assert [finding.rule for finding in diagnosis.findings] == ["input-bound"]


def test_nothing_measured_cannot_tell() -> None:
    diagnosis = diagnose(Measured(source="t.json"))

    assert diagnosis.verdict == "Cannot tell: nothing recorded here has a length: no step and no event."
    assert diagnosis.step is None


def test_a_rule_that_raises_is_reported_and_takes_no_other_answer_with_it() -> None:
    def check(measured: Measured) -> Iterator[Finding]:
        raise ValueError("no such number")

    diagnosis = diagnose(BUSY, rules=[SimpleNamespace(ID="broken", check=check), rule("a", 20)])

    assert [finding.rule for finding in diagnosis.findings] == ["a"]
    assert diagnosis.missing == ("the rule broken failed and was left out: ValueError: no such number",)


def test_a_finding_that_another_explains_names_its_cause() -> None:
    rules = [rule("launch-bound", 30), rule("many-small-ops", 20)]

    diagnosis = diagnose(BUSY, rules=rules)

    causes = {finding.rule: finding.follows for finding in diagnosis.findings}
    assert causes == {"launch-bound": "many-small-ops", "many-small-ops": None}
    assert "Start with many-small-ops" in diagnosis.verdict


def test_what_is_explained_stands_behind_its_cause_however_large_it_is() -> None:
    rules = [rule("launch-bound", 60), rule("input-bound", 40), rule("many-small-ops", 20)]

    findings = diagnose(BUSY, rules=rules).findings

    assert [finding.rule for finding in findings] == ["input-bound", "many-small-ops", "launch-bound"]


def test_a_sync_that_breaks_a_graph_is_explained_by_it_at_that_line_alone() -> None:
    at_line_7 = diagnose(BUSY, rules=[rule("graph-breaks", 20), rule("sync-in-step", None)])
    elsewhere = diagnose(
        BUSY,
        rules=[
            SimpleNamespace(
                ID="graph-breaks",
                check=lambda measured: iter(
                    [msgspec.structs.replace(next(iter(rule("graph-breaks", 20).check(measured))), line=8)]
                ),
            ),
            rule("sync-in-step", None),
        ],
    )

    assert [finding.follows for finding in at_line_7.findings] == [None, "graph-breaks"]
    assert "no price" not in at_line_7.verdict
    assert [finding.follows for finding in elsewhere.findings] == [None, None]


def test_the_python_of_a_loop_over_small_ops_is_explained_by_it_in_that_function_alone() -> None:
    loop = next(iter(rule("many-small-ops", 20).check(BUSY)))
    causes = []
    for function in ("attend", "tokenize"):
        found = msgspec.structs.replace(next(iter(rule("python-bound", 10).check(BUSY))), line=99, function=function)
        rules = [
            SimpleNamespace(ID=one.rule, check=lambda measured, one=one: iter([one]))
            for one in (msgspec.structs.replace(loop, function="attend"), found)
        ]
        causes.append(diagnose(BUSY, rules=rules).findings[1].follows)

    assert causes == ["many-small-ops", None]


def test_the_planned_run_is_counted_by_the_mean_of_all_steps() -> None:
    planned = Measured(source="runs/x", step=BUSY.step, every_step=step(200), planned_steps=100_000)

    assert "that is up to 83 min of 5.6 h" in diagnose(planned, rules=[rule("a", 50)]).verdict


def test_what_was_lost_and_what_perfkit_cost_is_carried_on() -> None:
    rank = Rank(rank=0, launch_id="x", host="h", pid=1, start_ns=0, steps=50, overhead_ns=5 * MS)
    facts = TraceFacts(
        path="t", format="kineto", events=1, device_events=0, devices=(), steps=0, span_ns=1, rank=None,
        world_size=None, has_stacks=False, has_shapes=False, lost=("the file ends early",),
    )  # fmt: skip
    measured = Measured(source="runs/x", step=BUSY.step, rank=rank, trace=facts, missing=("rank 1 left nothing",))

    diagnosis = diagnose(measured)

    assert diagnosis.missing == ("rank 1 left nothing", "the file ends early")
    assert diagnosis.overhead is not None
    assert (diagnosis.overhead.step_ns, diagnosis.overhead.window_step_ns) == (100_000, 120 * MS)


def test_a_diagnosis_survives_json() -> None:
    diagnosis = diagnose(BUSY, rules=[rule("a", 20, None)])

    assert Diagnosis.from_json(diagnosis.to_json()) == diagnosis


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "this is no diagnosis"),
        ("[]", "this is no diagnosis"),
        ('{"schema": 1}', "this is no diagnosis"),
        ('{"schema": 9}', "has schema 9, this perfkit reads up to 1"),
    ],
)
def test_what_is_no_diagnosis_of_this_perfkit_is_refused(text: str, says: str) -> None:
    with pytest.raises(RunError, match=says):
        Diagnosis.from_json(text)


def test_every_rule_is_silent_on_a_source_without_any_part() -> None:
    for each in RULES:
        assert each.ID == "cannot-tell" or list(each.check(Measured(source="empty"))) == []


@beside
def test_a_real_training_without_loader_workers_is_input_bound_and_its_corrected_twin_is_not() -> None:
    slow = diagnose(TRACES / "resnet50-workers-0.pt.trace.json.gz")
    fast = diagnose(TRACES / "resnet50-workers-4.pt.trace.json.gz")

    first = slow.findings[0]
    assert first.rule == "input-bound"
    assert "input-bound" not in [finding.rule for finding in fast.findings]
    # The twin is the measured gain of the advice. The low end was chosen on this pair: this keeps it, no more.
    assert slow.step is not None
    assert fast.step is not None
    assert first.saving_low_ns is not None
    assert first.saving_high_ns is not None
    assert first.saving_low_ns <= slow.step.wall_ns - fast.step.wall_ns <= first.saving_high_ns


@beside
@pytest.mark.parametrize(
    ("trace", "rule"),
    [
        ("a100-8ranks-training.json.gz", "exposed-communication"),
        ("v100-2ranks-training.json.gz", "exposed-communication"),
        ("a100-2ranks-nccl.json.gz", "launch-bound"),
        ("h100-inference-image.json.gz", "launch-bound"),
        ("a100-alexnet-cuda-sync-events.json.gz", "cannot-tell"),
        ("cpu-only-rank34.json.gz", "cannot-tell"),
        ("mi250-rocm.json.gz", "launch-bound"),
        ("nsys-healthy.sqlite", "compute-bound"),
        ("nsys-mock.sqlite", "cannot-tell"),
    ],
)
def test_the_first_finding_of_a_real_trace_is_its_known_cause(trace: str, rule: str) -> None:
    assert diagnose(TRACES / trace).findings[0].rule == rule
