"""On a device the savings of findings are those of a replay, where one predicts their correction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from trace_timeline import GEMM_BF16, Timeline

from perfkit.diagnosis import Diagnosis, diagnose
from perfkit.findings import Finding
from perfkit.ledger.claims import claim
from perfkit.ledger.ledger import Ledger
from perfkit.ledger.rows import LedgerRow, Selector
from perfkit.replay import finding_savings
from perfkit.replay.transforms import find_transforms
from perfkit.replay.what_if import what_if
from perfkit.rules._engine import find_rules

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def finding(found: Diagnosis, rule: str) -> Finding:
    return next(one for one in found.findings if one.rule == rule)


def late_launches(line: Timeline) -> None:
    """Sixty kernels, each launched after the one before it is over."""
    for i in range(60):
        line.run(GEMM_BF16, 3, op=f"aten::layer_{i}", host=20)


def waits_for_ranks(line: Timeline, waits: float = 2_000) -> None:
    """Late launches, and a collective in which another rank is late in four of five steps."""
    line.world_size = 8
    late_launches(line)
    late = waits if len([one for one in line.events if one["name"].startswith("ProfilerStep")]) else 0
    line.all_reduce(300 + late, elements=1_000_000)
    line.join()
    line.run(GEMM_BF16, 100)
    line.read()


def test_rules_name_changes_that_exist() -> None:
    named = [rule.what_if for rule in find_rules() if rule.what_if is not None]

    names = {name for one in named for name, _ in filter(None, one.values() if isinstance(one, Mapping) else [one])}
    assert names <= find_transforms().keys()
    assert {"hide-loader", "sync", "copy-waits", "launch-overhead", "exposed-communication"} <= names


def test_the_saving_of_a_hidden_loader_holds_what_was_measured(shared: Callable[[str], Path]) -> None:
    before, after = (diagnose(shared(f"resnet50-workers-{count}.pt.trace.json.gz")) for count in (0, 4))

    loader = finding(before, "input-bound")

    assert before.step is not None
    assert after.step is not None
    assert loader.what_if == "--hide-loader"
    assert loader.saving_low_ns <= before.step.wall_ns - after.step.wall_ns <= loader.saving_high_ns


@pytest.mark.parametrize("work", [2, 20, 30], ids=lambda work: f"{work} ms on the device")
def test_the_saving_of_a_hidden_loader_holds_what_workers_would_save(made, work: float) -> None:
    """Also where the device still works while the loop loads, and where it is what the step waits for then."""

    def step(line: Timeline, load: float) -> None:
        with line.range(LOADER):
            line.spend(load)
        line.run(GEMM_BF16, 1_000 * work)
        for _ in range(100):
            line.op("aten::view", 100)

    loaded, hidden = (
        diagnose(made.line().steps(lambda line, load=load: step(line, load), sync=False, count=40).write())
        for load in (30_000, 100)
    )
    saved = loaded.figures.wall_ns - hidden.figures.wall_ns

    loader = finding(loaded, "input-bound")

    assert loader.what_if == "--hide-loader"
    assert loader.saving_low_ns <= saved <= loader.saving_high_ns * 1.01


def test_a_finding_saves_what_its_what_if_saves_and_no_more_than_it_costs(made) -> None:
    def step(line: Timeline) -> None:
        late_launches(line)
        line.run(GEMM_BF16, 1_000)
        line.read()
        line.spend(700)

    path = made.line().steps(step).write()

    sync = finding(diagnose(path), "sync-in-step")

    answer = what_if(path, without=["sync"])
    assert sync.what_if == "--without sync"
    assert sync.saving_high_ns <= min(sync.cost_ns, answer.step_ns - answer.low_ns + 1)


def test_where_a_rule_knows_no_minimum_the_replay_knows_none_either(made) -> None:
    late = finding(diagnose(made.line().steps(late_launches).write()), "launch-bound")

    assert late.what_if == "--without launch-overhead"
    assert late.saving_low_ns == 0
    assert 0 < late.saving_high_ns <= late.cost_ns


def test_time_that_the_device_hides_is_not_left_out_twice() -> None:
    """Of a cost of 50 ms the device was idle for 40; the replay knew that and saves 30 to 36 ms."""
    ledger = Ledger(
        wall_ns=100,
        per="step",
        basis="device",
        rows=(
            LedgerRow(owner="idle", name="data loading", ns=40),
            LedgerRow(owner="computing", name="kernels", ns=60),
        ),
    )
    of_loader = Finding(
        rule="input-bound", severity="warning", message="", advice="", cost_ns=50, saving_low_ns=30, saving_high_ns=36
    )
    selectors = {"input-bound": (Selector(owner="idle", names=("data loading",)),)}

    def paid(**more: object) -> tuple[int | None, ...]:
        _, (found,) = claim(ledger, [Finding(**{**_fields(of_loader), **more})], selectors)  # type: ignore[arg-type]
        return found.cost_ns, found.saving_low_ns, found.saving_high_ns

    assert paid(what_if="--hide-loader") == (40, 30, 36)
    assert paid() == (40, 24, 29)
    # More than is left is not paid for.
    assert paid(what_if="--hide-loader", saving_high_ns=50, saving_low_ns=30) == (40, 24, 40)


def _fields(one: Finding) -> dict[str, object]:
    return {name: getattr(one, name) for name in one.__struct_fields__}


def test_what_waits_for_other_ranks_keeps_the_saving_of_its_rule_and_says_why(made) -> None:
    found = diagnose(made.line().steps(waits_for_ranks).write())

    waiting = next(one for one in found.findings if one.message.startswith("Another rank is late"))

    assert waiting.what_if is None
    assert waiting.saving_high_ns == waiting.cost_ns
    (said,) = [one.source for one in waiting.evidence if one.name == "saving by replay"]
    assert "does not show when the others arrive" in said


def test_a_change_saves_surely_only_what_exceeds_the_waiting_for_a_later_rank(made) -> None:
    together, apart = (
        what_if(
            made.line().steps(lambda line, waits=waits: waits_for_ranks(line, waits)).write(),
            without=["launch-overhead"],
        )
        for waits in (0, 2_000)
    )

    assert together.step_ns - together.high_ns > 1_000_000
    assert apart.step_ns - apart.high_ns == 0
    assert apart.step_ns - apart.low_ns > 1_000_000


def test_without_steps_the_savings_are_the_rules(made) -> None:
    line = made.line()
    for _ in range(20):
        late_launches(line)

    found = diagnose(line.write())

    assert finding(found, "launch-bound").what_if is None


def test_where_launches_are_missing_nothing_is_replayed_and_the_diagnosis_says_so(made) -> None:
    line = made.line().steps(late_launches)
    launches = [event for event in line.events if event["name"] == "cudaLaunchKernel"]
    for event in launches[::8]:
        line.events.remove(event)

    found = diagnose(line.write())

    assert finding(found, "launch-bound").what_if is None
    assert "savings are estimated without a replay of the steps: the recording is incomplete" in found.missing


def test_a_replay_that_fails_costs_no_finding(made, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("a defect")

    monkeypatch.setattr(finding_savings, "recording_of", fail)

    found = diagnose(made.line().steps(late_launches).write())

    assert finding(found, "launch-bound").what_if is None
    assert any("ValueError: a defect" in one for one in found.missing)
