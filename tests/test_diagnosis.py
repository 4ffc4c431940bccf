"""The diagnosis: findings ordered by cost, and a verdict on what to fix first."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perfkit._location import Location
from perfkit.diagnosis import Diagnosis, diagnose
from perfkit.errors import RunError
from perfkit.findings import Finding
from perfkit.measures.results.loop import LoopPart, LoopTime
from perfkit.measures.results.measurements import Measurements, PlannedSteps, TraceFacts
from perfkit.measures.results.steps import MeanStep, Ranks, StepBreakdown, TypicalStep
from perfkit.measures.results.work import OpWorkTime, StepWork
from perfkit.rules._engine import Rule, find_rules
from perfkit.rules.verdicts import compute_bound
from perfkit.run.records import Loader, MachineLimits, Phases, ProcessGroup, Rank, Rate, Waits

MS = 1_000_000
TRACES = Path(__file__).resolve().parents[1] / "../shared/traces"
shared_traces = pytest.mark.skipif(not TRACES.is_dir(), reason="shared traces are not next to the checkout")


def step(wall: float, kind: type[StepBreakdown] = TypicalStep, **phases: float) -> Any:
    return kind(
        steps=40,
        wall_ns=round(wall * MS),
        median_ns=round(wall * MS),
        p10_ns=round(wall * MS),
        p90_ns=round(wall * MS),
        phases_ns=Phases(**{name: round(ms * MS) for name, ms in phases.items()}),
        source="steps.jsonl, 40 steps",
        window_ns=round(1.2 * wall * MS),
    )


def finding(cost_ms: float | None, line: int = 7, function: str | None = None, **fields: Any) -> Finding:
    cost = None if cost_ms is None else round(cost_ms * MS)
    defaults = {"severity": "warning", "message": f"costs {cost_ms}", "advice": "change it", "confidence": "high"}
    return Finding(
        **defaults | fields,
        spent=Location(file="train.py", line=line, function=function),
        cost_ns=cost,
        saving_low_ns=0 if cost else None,
        saving_high_ns=cost,
    )


def rule(rule_id: str, *findings: Finding | float | None, **fields: Any) -> Rule:
    """A rule that finds these findings, or findings of these costs in ms, whatever was measured."""
    found = [one if isinstance(one, Finding) else finding(one, **fields) for one in findings]
    real = next((known for known in find_rules() if known.id == rule_id), None)
    if real is not None:
        return real._replace(check=lambda: found, needs=())
    return Rule(rule_id, "test", "", lambda: found, ())


#: One product per phase, at 92% of what the machine can compute.
AT_LIMIT = (
    StepWork(
        source="stacks-0",
        step_ns=100 * MS,
        rows=tuple(
            OpWorkTime(
                op="aten::mm",
                phase=phase,
                ns=ns * MS,
                calls=1,
                ops=0,
                flops=ns * 10**7,
                bytes=8,
                precision="float32",
                kind="matmul",
            )
            for phase, ns in (("forward", 60), ("backward", 40))
        ),
    ),
    MachineLimits(
        method=1,
        host="h",
        cpu="a CPU",
        torch="2.13.0",
        threads=1,
        measured_at_ns=0,
        disturbed=False,
        products={"float32": (Rate(1000, 1.1e10),)},
        convolutions={},
        functions={},
        bandwidth={"copy": (Rate(1000, 1e10),)},
        op_ns=2000,
        node_ns=1000,
    ),
)

TYPICAL = step(100, data=10, forward=60, backward=30)


def busy(*others: Any) -> Measurements:
    return Measurements("runs/x", TYPICAL, *others)


def test_findings_are_ordered_by_cost_then_unquantified_then_information() -> None:
    rules = [rule("a", None, 5), rule("b", 30, severity="info"), rule("c", 20)]

    findings = diagnose(busy(), rules=rules).findings

    assert [(one.rule, one.message) for one in findings] == [
        ("c", "costs 20"), ("a", "costs 5"), ("a", "costs None"), ("b", "costs 30"),
    ]  # fmt: skip


def test_the_verdict_names_the_largest_part_what_to_fix_first_and_what_it_saves() -> None:
    assert diagnose(busy(), rules=[rule("a", 20, None)]).verdict == (
        "A step takes 100 ms, most of it the forward pass (60%). Fix a at train.py:7 first: "
        "saves up to 20.0 ms/step (20% at most). Unexplained: computing in forward (48%); "
        "1 finding could not be quantified on this machine."
    )


def test_a_verdict_with_all_its_parts_has_four_sentences() -> None:
    parts = (LoopPart(use="typical", total_ns=60 * MS, steps=40), LoopPart(use="validation", total_ns=40 * MS))
    loop = LoopTime(total_ns=100 * MS, steps=40, typical_ns=MS, parts=parts)
    found = busy(step(200, MeanStep), PlannedSteps(count=100_000), loop)

    verdict = diagnose(found, rules=[rule("a", 20), rule("b", 10, None)]).verdict

    assert len(re.findall(r"[.](?= |$)", verdict)) == 4
    for part in ("typical step covers", "Fix a", "over the planned", "both together", "Unexplained", "be quantified"):
        assert part in verdict


def test_the_verdict_of_several_ranks_names_their_number_their_backend_and_their_time_in_collectives() -> None:
    rank = Rank(rank=0, launch_id="x", host="h", pid=1, start_ns=0, process_group=ProcessGroup(backend="gloo", size=2))
    waiting = msgspec.structs.replace(TYPICAL, waited_phases_ns=Waits(backward=30 * MS))
    both = Ranks(steps=60, wall_ns=100 * MS, waiting_ns=20 * MS, ranks=(), blocked_ns=25 * MS, transfer_ns=5 * MS)

    def sentence(*measured: Any) -> str:
        verdict = diagnose(Measurements("runs/x", *measured), rules=[rule("a", 20)]).verdict
        return verdict.partition("; ")[2].partition(". ")[0]

    assert sentence(TYPICAL, rank, both) == (
        "2 ranks train over gloo, with 5% of the step in collectives and 20% in waiting for the last rank"
    )
    assert sentence(waiting, rank) == "2 ranks train over gloo, this one with 30% of the step in collectives"
    assert sentence(TYPICAL, rank) == "2 ranks train over gloo, and how long they are in collectives was not recorded"
    alone = msgspec.structs.replace(rank, process_group=None)
    assert "ranks" not in diagnose(Measurements("runs/x", TYPICAL, alone), rules=[rule("a", 20)]).verdict


def test_a_range_of_a_saving_is_never_cut_to_look_narrow() -> None:
    wide = msgspec.structs.replace(finding(50), saving_low_ns=1, saving_high_ns=57 * MS)

    [found] = diagnose(busy(), rules=[rule("a", wide)]).findings

    assert found.saving_low_ns == 0
    assert found.saving_high_ns is not None
    assert found.saving_high_ns > 57 * MS


def test_savings_together_never_exceed_the_step() -> None:
    verdict = diagnose(busy(), rules=[rule("a", 80), rule("b", 70)]).verdict

    assert "both together save up to 100 ms" in verdict


def test_the_saving_is_extrapolated_to_the_planned_run() -> None:
    verdict = diagnose(busy(PlannedSteps(count=100_000)), rules=[rule("a", 50)]).verdict

    assert "(50% at most), over the planned 100,000 steps up to 83 min of 2.8 h." in verdict


def test_a_healthy_run_has_no_savings() -> None:
    diagnosis = diagnose(Measurements("runs/x", step(100, data=1, forward=60, backward=39), *AT_LIMIT))

    assert [one.rule for one in diagnosis.findings] == ["compute-bound"]
    assert diagnosis.outcome == "healthy"
    assert diagnosis.verdict.startswith("No savings above 5% found. 99% of the 100 ms step runs at 92% of the compute")


def test_a_run_without_limits_is_not_called_healthy() -> None:
    diagnosis = diagnose(Measurements("runs/x", step(100, data=1, forward=60, backward=39)))

    assert diagnosis.outcome == "unexplained"
    assert diagnosis.verdict.startswith(
        "No rule found a problem, but the step is not proven healthy. 100% of its 100 ms is"
    )


def test_a_busy_machine_is_named_and_does_not_make_a_step_unhealthy() -> None:
    rank = Rank(rank=0, launch_id="x", host="h", pid=1, start_ns=0, core_wait_share=0.5)

    diagnosis = diagnose(Measurements("runs/x", step(200, data=2, forward=120, backward=78), *AT_LIMIT, rank))

    assert diagnosis.outcome == "healthy"
    assert diagnosis.verdict.endswith("Other programs had the core for 50% of the step: a quieter machine shows more.")


def test_its_own_workers_are_named_where_there_are_too_few_cores_for_them() -> None:
    rank = Rank(
        rank=0,
        launch_id="x",
        host="h",
        pid=1,
        start_ns=0,
        core_wait_share=0.5,
        settings={"cpu_count": "2", "torch.num_threads": "1"},
        loaders=(
            Loader(
                dataset="Keywords",
                batch_size=24,
                num_workers=2,
                pin_memory=False,
                prefetch_factor=2,
                persistent_workers=True,
            ),
        ),
    )

    diagnosis = diagnose(Measurements("runs/x", step(200, data=2, forward=120, backward=78), *AT_LIMIT, rank))

    assert diagnosis.verdict.endswith(
        "Other processes had the core for 50% of the step, the 2 workers of its own DataLoader among them: there are 2 "
        "cores."
    )


def test_the_outcome_of_a_problem_with_a_cost_is_findings() -> None:
    assert diagnose(busy(), rules=[rule("a", 20)]).outcome == "findings"


def test_the_healthy_verdict_states_the_uncertainty_of_the_step() -> None:
    few = msgspec.structs.replace(step(100, forward=60, backward=40), steps=4, p10_ns=80 * MS, p90_ns=120 * MS)

    assert diagnose(Measurements("runs/x", few, *AT_LIMIT)).verdict.startswith(
        "No savings above 16% found; steps vary by that much."
    )


def test_the_healthy_verdict_does_not_deny_the_saving_of_information() -> None:
    rules = [rule("tuning", 9, severity="info"), Rule.of(compute_bound)]

    verdict = diagnose(Measurements("runs/x", step(100, forward=60, backward=40), *AT_LIMIT), rules=rules).verdict

    assert verdict.startswith("No savings above 9% found (tuning may save that much).")


def test_a_step_of_which_information_may_save_more_than_a_tenth_is_not_called_healthy() -> None:
    def outcome(saving: int) -> str:
        rules = [rule("tuning", saving, severity="info"), Rule.of(compute_bound)]
        return diagnose(Measurements("runs/x", step(100, forward=60, backward=40), *AT_LIMIT), rules=rules).outcome

    assert (outcome(9), outcome(11)) == ("healthy", "unexplained")


def test_a_quantified_problem_leaves_no_healthy_verdict() -> None:
    diagnosis = diagnose(Measurements("runs/x", step(100, data=40, forward=60)))

    assert [one.rule for one in diagnosis.findings] == ["input-bound"]


def test_without_any_measure_the_verdict_cannot_tell() -> None:
    diagnosis = diagnose(Measurements("t.json"))

    assert diagnosis.verdict.startswith("Cannot tell: ")
    assert diagnosis.step is None


def test_a_rule_that_raises_is_reported_and_leaves_the_findings_of_others() -> None:
    def check() -> Iterator[Finding]:
        raise ValueError("no such number")

    diagnosis = diagnose(busy(), rules=[Rule("broken", "test", "", check, ()), rule("a", 20)])

    assert [one.rule for one in diagnosis.findings] == ["a"]
    assert diagnosis.missing == ("the rule broken failed and was skipped: ValueError: no such number",)


def test_rules_that_could_not_be_asked_name_what_they_need() -> None:
    needs = {one.rule: one.needs for one in diagnose(busy()).not_asked}

    assert "input-bound" not in needs
    assert needs["launch-bound"] == ("a trace with device work: a window recorded on a machine with a GPU",)


def test_a_finding_that_another_explains_names_its_cause() -> None:
    diagnosis = diagnose(busy(), rules=[rule("cuda-graph-candidate", 30), rule("launch-bound", 20)])

    causes = {one.rule: one.follows for one in diagnosis.findings}
    assert causes == {"cuda-graph-candidate": "launch-bound", "launch-bound": None}
    assert "Fix launch-bound at train.py:7 first" in diagnosis.verdict


def test_an_explained_finding_comes_after_its_cause_however_large_it_is() -> None:
    rules = [rule("cuda-graph-candidate", 60), rule("input-bound", 40), rule("launch-bound", 20)]

    findings = diagnose(busy(), rules=rules).findings

    assert [one.rule for one in findings] == ["input-bound", "launch-bound", "cuda-graph-candidate"]


def test_a_sync_that_breaks_a_graph_is_explained_by_it_at_that_line_alone() -> None:
    at_line_7 = diagnose(busy(), rules=[rule("graph-breaks", 20), rule("sync-in-step", None)])
    elsewhere = diagnose(busy(), rules=[rule("graph-breaks", 20, line=8), rule("sync-in-step", None)])

    assert [one.follows for one in at_line_7.findings] == [None, "graph-breaks"]
    assert "could not be quantified" not in at_line_7.verdict
    assert [one.follows for one in elsewhere.findings] == [None, None]


def test_the_python_of_a_loop_over_small_ops_is_explained_by_it_in_that_function_alone() -> None:
    loop = rule("many-small-ops", 20, function="attend")
    causes = []
    for function in ("attend", "tokenize"):
        rules = [loop, rule("python-bound", 10, line=99, function=function)]
        causes.append(diagnose(busy(), rules=rules).findings[1].follows)

    assert causes == ["many-small-ops", None]


def test_the_planned_run_is_counted_by_the_mean_of_all_steps() -> None:
    planned = busy(step(200, MeanStep), PlannedSteps(count=100_000))

    assert "over the planned 100,000 steps up to 83 min of 5.6 h" in diagnose(planned, rules=[rule("a", 50)]).verdict


def test_damage_of_the_source_and_the_cost_of_perfkit_are_part_of_the_answer() -> None:
    rank = Rank(rank=0, launch_id="x", host="h", pid=1, start_ns=0, steps=50, overhead_ns=5 * MS,
                fixed_overhead_ns={"start": 200 * MS, "end": 20 * MS})  # fmt: skip
    facts = TraceFacts(
        path="t", format="kineto", events=1, device_events=0, devices=(), steps=0, span_ns=1, rank=None,
        world_size=None, has_stacks=False, has_shapes=False, lost=("the file ends early",),
    )  # fmt: skip
    found = Measurements("runs/x", TYPICAL, rank, facts, missing=("rank 1 left nothing",))

    diagnosis = diagnose(found)

    assert diagnosis.missing == ("rank 1 left nothing", "the file ends early")
    assert diagnosis.overhead is not None
    assert (diagnosis.overhead.step_ns, diagnosis.overhead.window_step_ns) == (100_000, 120 * MS)
    assert sum(diagnosis.overhead.fixed_ns.values()) == 220 * MS


def test_a_diagnosis_survives_json() -> None:
    diagnosis = diagnose(busy(), rules=[rule("a", 20, None)])

    assert Diagnosis.from_json(diagnosis.to_json()).to_json() == diagnosis.to_json()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "the diagnosis is damaged"),
        ("[]", "the diagnosis is damaged"),
        ('{"schema": 3}', "the diagnosis is damaged"),
        ('{"schema": 1, "source": "x", "verdict": ""}', "has schema 1, this perfkit reads 3"),
        ('{"schema": 9}', "has schema 9, this perfkit reads 3"),
    ],
)
def test_a_damaged_diagnosis_or_one_of_another_schema_is_refused(text: str, message: str) -> None:
    with pytest.raises(RunError, match=message):
        Diagnosis.from_json(text)


def test_every_rule_is_silent_on_a_source_without_any_part() -> None:
    for each in find_rules():
        assert each.id == "cannot-tell" or each.run(Measurements("empty")) == []


@shared_traces
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


@shared_traces
@pytest.mark.parametrize(
    ("trace", "rule"),
    [
        ("a100-8ranks-training.json.gz", "exposed-communication"),
        ("v100-2ranks-training.json.gz", "exposed-communication"),
        ("a100-2ranks-nccl.json.gz", "launch-bound"),
        ("h100-inference-image.json.gz", "launch-bound"),
        ("a100-alexnet-cuda-sync-events.json.gz", "unexplained"),
        ("cpu-only-rank34.json.gz", "unexplained"),
        ("nsys-healthy.sqlite", "unexplained"),
        ("nsys-mock.sqlite", "unexplained"),
    ],
)
def test_the_first_finding_of_a_real_trace_is_its_known_cause(trace: str, rule: str) -> None:
    assert diagnose(TRACES / trace).findings[0].rule == rule


@shared_traces
def test_one_long_gap_at_the_first_launch_is_no_cause_of_a_slow_loop() -> None:
    # 6.6 of 9.3 ms: the runtime loads its code. The other gaps are of 14 kernels.
    assert diagnose(TRACES / "mi250-rocm.json.gz").outcome == "unexplained"
