"""Two runs side by side: what changed, and what is only noise."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import pytest

from perfkit._location import Location
from perfkit.comparison import compare, notes_of
from perfkit.comparison.sides import side_of
from perfkit.diagnosis import Diagnosis, Figures
from perfkit.errors import RunError, UsageError
from perfkit.findings import Finding
from perfkit.ledger.ledger import ClaimedLedger, Ledger
from perfkit.ledger.rows import LedgerRow, Owner
from perfkit.measures.results.host import OpTime
from perfkit.measures.results.measurements import TraceFacts
from perfkit.measures.results.steps import TypicalStep
from perfkit.measures.steps.difference_interval import few_steps_interval
from perfkit.run.merging import merged_in_blocks
from perfkit.run.records import Loader, Phases, Rank, Run, Step

MS = 1_000_000


def write_run(
    folder: Path,
    data_ms: float,
    rest_ms: float,
    seed: int,
    steps: int = 60,
    samples: int | None = None,
    workers: int | None = None,
    losses: Sequence[float] = (),
    ending: str | None = None,
) -> Path:
    """A run folder of steps that flicker by a tenth."""
    noise = random.Random(seed)
    (folder / "rank-0").mkdir(parents=True)
    run = Run(launch_id="x", command=("train.py",), folder=str(folder), world_size=1)
    (folder / "run.json").write_bytes(msgspec.json.encode(run))
    rows = []
    for number in range(steps):
        data = round(data_ms * MS * noise.uniform(0.9, 1.1))
        rest = round(rest_ms * MS * noise.uniform(0.9, 1.1))
        rows.append(
            Step(
                step=number,
                start_ns=0,
                wall_ns=data + rest,
                phases_ns=Phases(data=data, forward=rest),
                samples=samples,
                loss=losses[number] if number < len(losses) else None,
            )
        )
    loader = Loader(
        dataset="Reviews", batch_size=8, num_workers=workers or 0, pin_memory=False, prefetch_factor=None,
        persistent_workers=False,
    )  # fmt: skip
    loaders = (loader,) if workers is not None else ()
    rank = Rank(rank=0, launch_id="x", host="h", pid=1, start_ns=0, ending=ending, loaders=loaders)
    (folder / "rank-0" / "rank.json").write_bytes(msgspec.json.encode(rank))
    (folder / "rank-0" / "steps.jsonl").write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    return folder


def diagnosis(wall_ms: float, *findings: Finding, **figures: Any) -> Diagnosis:
    wall_ns = round(wall_ms * MS)
    step = TypicalStep(
        steps=9, wall_ns=wall_ns, median_ns=wall_ns, p10_ns=wall_ns, p90_ns=wall_ns, phases_ns=Phases(), source="trace"
    )
    return Diagnosis(source="t.json", verdict="", step=step, findings=findings, figures=Figures(**figures))


def finding(rule: str, line: int, file: str = "train.py") -> Finding:
    return Finding(
        rule=rule,
        severity="warning",
        message="",
        advice="",
        confidence="high",
        spent=Location(file=file, line=line, function="train"),
    )


def test_a_faster_data_phase_is_reported_and_the_unchanged_rest_is_not(tmp_path: Path) -> None:
    before = write_run(tmp_path / "a", data_ms=20, rest_ms=30, seed=1)
    after = write_run(tmp_path / "b", data_ms=0.5, rest_ms=30, seed=2)

    comparison = compare(before, after)

    changes = {one.name: one.change for one in comparison.differences if one.kind in ("step", "phase")}
    assert changes == {"step": "faster", "data": "faster", "forward": "no difference"}
    step = comparison.differences[0]
    assert step.low_ns is not None
    assert step.high_ns is not None
    assert step.low_ns < step.after_ns - step.before_ns < step.high_ns < 0
    assert comparison.verdict == "A step is faster: 50.1 ms before, 30.6 ms after (-39%)."
    assert [finding.rule for finding in comparison.gone] == ["input-bound"]


def test_two_runs_of_the_same_program_do_not_differ(tmp_path: Path) -> None:
    before = write_run(tmp_path / "a", data_ms=20, rest_ms=30, seed=1)
    after = write_run(tmp_path / "b", data_ms=20, rest_ms=30, seed=2)

    comparison = compare(before, after)

    assert {one.change for one in comparison.differences if one.kind != "owner"} == {"no difference"}
    assert comparison.verdict.startswith("No difference: ")
    assert (comparison.gone, comparison.new) == ((), ())


def test_the_same_comparison_twice_gives_the_same_answer(tmp_path: Path) -> None:
    before = write_run(tmp_path / "a", data_ms=20, rest_ms=30, seed=1)
    after = write_run(tmp_path / "b", data_ms=19, rest_ms=30, seed=2)

    assert compare(before, after) == compare(before, after)


def test_a_long_run_whose_older_steps_are_merged_is_compared_by_the_steps_that_are_not(tmp_path: Path) -> None:
    short = write_run(tmp_path / "a", data_ms=20, rest_ms=30, seed=1)
    long = write_run(tmp_path / "b", data_ms=20, rest_ms=30, seed=2, steps=600)
    # The mean of a block includes what is rare, which the typical step leaves out: by it the same program is slower.
    rows = long / "rank-0" / "steps.jsonl"
    decoded = msgspec.json.Decoder(Step).decode_lines(rows.read_bytes())
    decoded = [
        msgspec.structs.replace(row, wall_ns=row.wall_ns + 90 * MS) if row.step % 10 == 9 else row for row in decoded
    ]
    rows.write_bytes(msgspec.json.Encoder().encode_lines([*merged_in_blocks(decoded[:500], 50), *decoded[500:]]))

    found = compare(short, long)

    assert found.differences[0].change == "no difference"
    assert f"100 of the 600 steps of {long} are compared: those with rows of their own" in found.notes
    assert not any("are compared: those" in note for note in compare(short, short).notes)


def test_too_few_steps_are_not_tested(tmp_path: Path) -> None:
    before = write_run(tmp_path / "a", data_ms=20, rest_ms=30, seed=1, steps=4)
    after = write_run(tmp_path / "b", data_ms=2, rest_ms=30, seed=2)

    assert {difference.change for difference in compare(before, after).differences} == {"not tested"}


def test_diagnoses_hold_no_single_steps_so_nothing_is_tested() -> None:
    comparison = compare(diagnosis(50), diagnosis(40))

    assert comparison.verdict == (
        "A step took 50.0 ms before, 40.0 ms after (-20%); whether that is more than noise was not tested."
    )
    assert comparison.notes


def test_a_finding_that_moved_with_an_edit_or_a_copy_is_the_same_finding() -> None:
    before = diagnosis(50, finding("input-bound", 10, "runs/a/train.py"), finding("sync-in-step", 20))
    after = diagnosis(50, finding("input-bound", 14, "runs/b/train.py"), finding("many-small-ops", 3))

    comparison = compare(before, after)

    assert [finding.rule for finding in comparison.gone] == ["sync-in-step"]
    assert [finding.rule for finding in comparison.new] == ["many-small-ops"]


def test_counts_are_compared_where_both_sides_have_them() -> None:
    comparison = compare(diagnosis(50, syncs_per_step=2.0, ops_per_step=900.0), diagnosis(50, syncs_per_step=0.0))

    assert [(count.name, count.before, count.after) for count in comparison.counts] == [("syncs", 2.0, 0.0)]


def test_ops_and_ranges_that_changed_by_a_part_of_the_step_are_reported_per_step() -> None:
    facts = TraceFacts(
        path="t.json", format="kineto", events=9, device_events=0, devices=(), steps=2, span_ns=100 * MS, rank=None,
        world_size=None, has_stacks=False, has_shapes=False, lost=(),
    )  # fmt: skip
    before = diagnosis(50, trace=facts, wall_ns=50 * MS, ops=(op("aten::mm", 40), op("aten::add", 2)))
    after = diagnosis(40, trace=facts, wall_ns=40 * MS, ops=(op("aten::mm", 20), op("aten::add", 2)))

    rows = [(d.kind, d.name, d.before_ns, d.after_ns, d.changed) for d in compare(before, after).differences[1:]]

    assert rows == [("op", "aten::mm", 20 * MS, 10 * MS, "-50%")]


def op(name: str, self_ms: int) -> OpTime:
    return OpTime(name=name, count=1, total_ns=self_ms * MS, self_ns=self_ms * MS)


def test_a_budget_for_the_step_is_not_broken_by_noise_and_is_by_a_slower_step(tmp_path: Path) -> None:
    before = write_run(tmp_path / "a", data_ms=20, rest_ms=30, seed=1)
    same = write_run(tmp_path / "b", data_ms=20, rest_ms=30, seed=2)
    slower = write_run(tmp_path / "c", data_ms=24, rest_ms=30, seed=3)

    assert compare(before, same, max_slowdown=0.0).broken == ()
    assert compare(before, slower, max_slowdown=0.2).broken == ()
    (broken,) = compare(before, slower, max_slowdown=0.03).broken
    assert broken.startswith("the step is +8%")


def test_a_budget_for_a_count_is_broken_by_one_more_and_by_a_count_that_is_missing() -> None:
    two, three = diagnosis(50, syncs_per_step=2.0), diagnosis(50, syncs_per_step=3.0)

    assert compare(two, three, max_more={"syncs": 1}).broken == ()
    assert compare(two, three, max_more={"syncs": 0}).broken == ("syncs: 2 → 3, at most 0 more are allowed",)
    (missing,) = compare(two, three, max_more={"recompiles": 0}).broken
    assert "not counted on both sides" in missing


@pytest.mark.parametrize(
    "budget",
    [
        {"max_slowdown": -0.1},
        {"max_slowdown": float("nan")},
        {"max_more": {"kernel": 0}},
        {"max_more": {"syncs": -1}},
    ],
)
def test_a_budget_that_cannot_be_is_an_error(budget: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        compare(diagnosis(50), diagnosis(50), **budget)


def test_other_batches_are_another_workload_and_another_loader_setting_is_not(tmp_path: Path) -> None:
    one = write_run(tmp_path / "a", 20, 30, 1, samples=32, workers=0)
    workers = write_run(tmp_path / "b", 20, 30, 2, samples=32, workers=4)
    larger = write_run(tmp_path / "c", 20, 30, 3, samples=64, workers=0)

    same, other = compare(one, workers), compare(one, larger)

    assert (same.workload, same.changed) == ("same", ("DataLoader(Reviews) num_workers: 0 → 4",))
    assert (other.workload, other.changed) == ("different", ("samples per step: 32 → 64",))
    assert any(note.startswith("not the same work") for note in other.notes)


def test_losses_that_agree_are_the_same_result_and_the_first_that_does_not_is_named(tmp_path: Path) -> None:
    one = write_run(tmp_path / "a", 20, 30, 1, losses=[2.0, 1.0, 0.5])
    same = write_run(tmp_path / "b", 20, 30, 2, losses=[2.0, 1.0000002, 0.5])
    other = write_run(tmp_path / "c", 20, 30, 3, losses=[2.0, 1.2, 0.5])

    assert compare(one, same).result == "same"
    answer = compare(one, other)
    assert answer.result == "different"
    assert any("losses differ from step 1 on: 1 before, 1.2 after" in note for note in answer.notes)
    assert compare(one, write_run(tmp_path / "d", 20, 30, 4)).result == "unknown"


def test_a_run_that_is_still_being_recorded_is_compared_and_said(tmp_path: Path) -> None:
    one = write_run(tmp_path / "a", 20, 30, 1, ending="done")
    going = write_run(tmp_path / "b", 20, 30, 2)

    assert [note for note in compare(one, going).notes if "still being recorded" in note] == [
        f"{going} is still being recorded"
    ]


def test_a_path_that_holds_no_run_is_an_error(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", data_ms=20, rest_ms=30, seed=1)
    (tmp_path / "empty").mkdir()

    with pytest.raises(RunError, match="no run"):
        compare(run, tmp_path / "empty")


def accounted(*rows: LedgerRow, basis: Literal["device", "training thread"] = "training thread") -> Diagnosis:
    ledger = Ledger(wall_ns=sum(row.ns for row in rows), per="step", basis=basis, rows=rows)
    return Diagnosis(source="t.json", verdict="", ledger=ClaimedLedger(ledger=ledger))


def row(owner: Owner, ms: int, name: str = "op") -> LedgerRow:
    return LedgerRow(owner=owner, name=name, ns=ms * MS)


def test_owners_of_the_ledger_are_compared_by_what_changed_most_and_idle_time_by_its_cause() -> None:
    before = accounted(row("computing", 60), row("computing", 20, "aten::mm"), row("idle", 19, "sync"), row("data", 1))
    after = accounted(row("computing", 78), row("idle", 40, "python"), row("idle", 19, "sync"), row("data", 2))

    owners = [one for one in compare(before, after).differences if one.kind == "owner"]

    assert [(one.name, one.before_ns, one.after_ns) for one in owners] == [
        ("idle (python)", None, 40 * MS),
        ("computing", 80 * MS, 78 * MS),
        ("idle (sync)", 19 * MS, 19 * MS),
    ]


def test_ledgers_of_a_device_and_of_a_thread_are_not_compared() -> None:
    differences = compare(accounted(row("idle", 9)), accounted(row("idle", 2), basis="device")).differences

    assert not [one for one in differences if one.kind == "owner"]


def trace_file(
    folder: Path, name: str, ops_us: Sequence[int], extra: Sequence[str] = (), *, steps: bool = True
) -> Path:
    """A trace of one op per step, with steps of 10 ms; ``extra`` ops run in each step for 2 ms."""
    events: list[dict[str, Any]] = []

    def add(cat: str, what: str, start: int, length: int) -> None:
        events.append({"ph": "X", "cat": cat, "name": what, "pid": 1, "tid": 1, "ts": start, "dur": length})

    for number, length in enumerate(ops_us):
        at = 100_000 + 10_000 * number
        if steps:
            add("user_annotation", f"ProfilerStep#{number}", at, 10_000)
        add("cpu_op", "aten::mm", at + 100, length)
        for place, what in enumerate(extra):
            add("cpu_op", what, at + 6_000 + 2_000 * place, 1_500)
    (folder / name).write_text(json.dumps({"traceEvents": events}))
    return folder / name


def test_an_op_of_traces_is_tested_over_their_steps(tmp_path: Path) -> None:
    before = trace_file(tmp_path, "a.json", [4_000, 4_100, 3_900, 4_050])
    slower = trace_file(tmp_path, "b.json", [5_000, 5_100, 4_900, 5_050])
    noisy = trace_file(tmp_path, "c.json", [2_000, 9_000, 1_000, 9_000])

    (op,) = (one for one in compare(before, slower).differences if one.kind == "op")
    assert (op.name, op.change) == ("aten::mm", "slower")
    assert (op.low_ns or 0) <= 1_000_000 <= (op.high_ns or 0)
    assert [one.change for one in compare(before, noisy).differences if one.kind == "op"] == ["no difference"]


def test_two_steps_of_a_trace_show_no_noise_so_nothing_is_tested(tmp_path: Path) -> None:
    before = trace_file(tmp_path, "a.json", [4_000, 4_100])
    after = trace_file(tmp_path, "b.json", [6_000, 6_100])

    assert {one.change for one in compare(before, after).differences} == {"not tested"}


def test_an_op_that_only_one_side_has_is_never_no_difference(tmp_path: Path) -> None:
    before = trace_file(tmp_path, "a.json", [4_000, 4_100, 3_900], extra=["aten::div"])
    after = trace_file(tmp_path, "b.json", [4_000, 4_100, 3_900])

    gone = [one for one in compare(before, after).differences if one.after_ns is None]
    new = [one for one in compare(after, before).differences if one.before_ns is None]

    assert [(one.name, one.changed, one.change) for one in gone] == [("aten::div", "removed", "faster")]
    assert [(one.name, one.changed, one.change) for one in new] == [("aten::div", "new", "slower")]


def test_what_took_no_time_on_both_sides_is_no_row(tmp_path: Path) -> None:
    found = compare(write_run(tmp_path / "a", 5, 10, 1), write_run(tmp_path / "b", 5, 10, 2))

    assert all(one.before_ns or one.after_ns for one in found.differences)


def test_traces_without_steps_are_compared_as_whole_recordings(tmp_path: Path) -> None:
    before = trace_file(tmp_path, "a.json", [4_000] * 4, steps=False)
    after = trace_file(tmp_path, "b.json", [8_000] * 4, steps=False)

    found = compare(before, after)

    assert found.verdict.startswith("The recording took 34.0 ms before, 38.0 ms after")
    (op,) = (one for one in found.differences if one.kind == "op")
    assert (op.before_ns, op.after_ns, op.change) == (16 * MS, 32 * MS, "not tested")
    assert any("neither side marks steps" in note for note in found.notes)


def test_other_arguments_are_said_before_anything_is_called_slower(tmp_path: Path) -> None:
    first, second = write_run(tmp_path / "a", 5, 10, 1), write_run(tmp_path / "b", 5, 20, 2)
    run = json.loads((second / "run.json").read_text())
    (second / "run.json").write_text(json.dumps({**run, "command": ["train.py", "--batch", "64"]}))

    verdict = compare(first, second).verdict

    assert verdict.startswith("Not the same arguments (none → --batch 64). A step is slower:")


def test_windows_that_were_recorded_in_another_way_are_said_first(tmp_path: Path) -> None:
    before = trace_file(tmp_path, "a.json", [4_000] * 3)
    after = trace_file(tmp_path, "b.json", [4_000] * 3)
    trace = json.loads(after.read_text())
    frame = {"ph": "X", "cat": "python_function", "name": "train.py(1): f", "pid": 1, "tid": 1, "ts": 100_000, "dur": 9}
    after.write_text(json.dumps({"traceEvents": [*trace["traceEvents"], frame]}))

    assert compare(before, after).verdict.startswith("Not the same window (of steps → of steps with stacks).")


def test_a_finding_that_is_gone_beside_an_equal_step_is_called_no_saving(tmp_path: Path) -> None:
    loader = Finding(
        rule="input-bound", severity="warning", message="m", advice="a", confidence="high", cost_ns=MS,
        spent=Location(file="train.py", line=3, function="f"),
    )  # fmt: skip
    first, second = write_run(tmp_path / "a", 5, 10, 1), write_run(tmp_path / "b", 5, 10, 2)
    found = compare(first, second)
    step = next(one for one in found.differences if one.kind == "step")
    assert step.change == "no difference"

    notes = notes_of(side_of(first), side_of(second), "same", (loader,), step)

    assert "the step did not change although input-bound is no longer found: that is no measured saving" in notes


def test_the_interval_of_a_few_steps_holds_the_true_difference_in_95_of_100_cases() -> None:
    random = np.random.default_rng(1)
    held = 0
    for _ in range(2_000):
        low, high = few_steps_interval(random.normal(100, 5, 3), random.normal(110, 20, 4)) or (0.0, 0.0)
        held += low <= 10 <= high

    assert 0.93 <= held / 2_000 <= 0.99


def test_an_op_that_is_too_short_for_a_diagnosis_to_keep_is_not_called_removed(tmp_path: Path) -> None:
    before = trace_file(tmp_path, "a.json", [4_000, 4_010, 3_990])
    after = trace_file(tmp_path, "b.json", [1, 1, 1], extra=[])
    trace = json.loads(after.read_text())
    for number in range(3):
        for place in range(40):  # more ops than a diagnosis keeps, each longer than mm
            at = 101_000 + 10_000 * number + 100 * place
            op = {"ph": "X", "cat": "cpu_op", "name": f"aten::op{place}", "pid": 1, "tid": 1, "ts": at, "dur": 50}
            trace["traceEvents"].append(op)
    after.write_text(json.dumps(trace))

    (op,) = (one for one in compare(before, after).differences if one.name == "aten::mm")

    assert (op.after_ns, op.changed, op.change) == (1_000, "-100%", "faster")
